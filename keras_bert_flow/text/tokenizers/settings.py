"""What the files beside a vocabulary say of its tokenizer: case, accents, Han characters, added tokens.

`tokenizer_config.json`, `special_tokens_map.json` and `added_tokens.json` are those of `transformers`, `tokenizer.json`
is that of `tokenizers`, and a `manifest.json` is that of a published vocabulary or of records. Where two of them say
the same thing, they must agree. A field that changes tokenization and is not implemented is refused by name.
"""

import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from keras_bert_flow.console.terminal import abridge
from keras_bert_flow.files.documents import Read, read_file, read_json_object
from keras_bert_flow.text.tokenizers.wordpiece import SETTINGS, AddedPiece, WordRules
from keras_bert_flow.text.vocabulary import CONTINUATION, SPECIAL_PIECES

SPECIAL_MAP, ADDED_TOKENS, MANIFEST = "special_tokens_map.json", "added_tokens.json", "manifest.json"
FAST_TOKENIZER, DECODER = "tokenizer.json", "added_tokens_decoder"
CASED, ACCENTS, HAN = "do_lower_case", "strip_accents", "tokenize_chinese_chars"  # of tokenizer_config.json
NORMALIZER_NAMES = {CASED: "lowercase", ACCENTS: "strip_accents", HAN: "handle_chinese_chars"}  # of tokenizer.json
# Classes of `transformers` that tokenize as BERT's, without `Fast`. The last three say nothing of their own.
BERT_CLASSES = (
    *(f"{name}Tokenizer" for name in ("Bert", "ConvBert", "DistilBert", "Electra", "Funnel", "LayoutLM", "Lxmert")),
    *(f"{name}Tokenizer" for name in ("MobileBert", "MPNet", "Nezha", "RetriBert", "SqueezeBert", "DPRReader")),
    *("DPRContextEncoderTokenizer", "DPRQuestionEncoderTokenizer"),
    *("PreTrainedTokenizer", "TokenizersBackend", "PythonBackend"),
)
# Classes that Python code of their own defines, so that no `tokenizer.json` does what they do.
OTHER_CLASSES = {
    f"{name}Tokenizer"
    for name in ("BertJapanese", "Bertweet", "Canine", "Flaubert", "JumanppBert", "Phobert", "RoFormer", "Tapas", "XLM")
}
# Fields of tokenizer_config.json that change the tokens of a text → values that do not.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "split_special_tokens": (None, False),
    "truncation_side": (None, "right"),
}
UNSUPPORTED_WORD_PIECE: dict[str, tuple[Any, ...]] = {
    "clean_text": (None, True),
    "do_basic_tokenize": (None, True),
    "do_subword_tokenize": (None, True),
    "do_word_tokenize": (None, True),
    "never_split": (None, []),
    "subword_tokenizer_type": (None, "wordpiece"),
    "word_tokenizer_type": (None, "basic"),
    "wordpieces_prefix": (None, CONTINUATION),
} | {f"{name}_kwargs": (None, {}) for name in ("mecab", "sudachi", "jumanpp")}
# Fields that are read here or elsewhere, or do not change the tokens of a text: names, lengths, padding, chat, images.
KNOWN = {
    *(CASED, ACCENTS, HAN, "added_tokens_decoder", "additional_special_tokens", "extra_special_tokens"),
    *(f"{name}_token" for name in ("unk", "sep", "pad", "cls", "mask", "bos", "eos")),
    *("tokenizer_class", "tokenizer_file", "vocab_file", "name_or_path", "special_tokens_map_file", "processor_class"),
    *("model_max_length", "max_len", "max_length", "model_input_names", "model_type", "init_inputs", "auto_map"),
    *("padding", "padding_side", "pad_to_multiple_of", "pad_token_type_id", "pad_token_id", "stride", "truncation"),
    *("truncation_strategy", "clean_up_tokenization_spaces", "chat_template", "use_fast", "is_local", "backend"),
    *("add_prefix_space", "trim_offsets", "errors", "add_special_tokens", "legacy", "return_token_type_ids"),
    *("merges_file", "full_tokenizer_file", "local_files_only", "trust_remote_code", "use_auth_token", "revision"),
    *("cache_dir", "from_slow", "transformers_version", "tokenize_chinese_characters", "verbose", "_commit_hash"),
    *("keep_accents", "remove_space", "sp_model_kwargs", "fix_mistral_regex", "tokenizer_type", "do_lower_case_fast"),
    *("cls_token_box", "sep_token_box", "pad_token_box", "pad_token_label", "only_label_first_subword"),
}

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Said:
    """What the files beside a vocabulary say of it.

    Attributes:
        cased: whether it keeps case; None if they do not say.
        rules: what else they say.
        sources: name of a setting → the file that says it.
    """

    cased: bool | None = None
    rules: WordRules = WordRules()
    sources: Mapping[str, Path] = field(default_factory=dict)


def read_said(vocabulary: Path, pieces: Iterable[str], read: Read = read_file) -> Said:
    """Return what the files beside a `vocab.txt`, or a WordPiece `tokenizer.json`, say of it.

    Args:
        pieces: the pieces of the vocabulary; those of `tokenizer.json` must be the same.
        read: as for `documents.read_json`.
    Raises:
        ValueError: a file is damaged, two contradict each other, or one asks for what is not implemented.
    """
    folder, pieces = vocabulary.parent, tuple(pieces)
    config = read_settings(folder, read)
    check_settings(config, folder / SETTINGS, is_word_piece=True)
    said: list[tuple[Path, dict[str, bool | None]]] = []
    if config:
        named = {name: config[name] for name in NORMALIZER_NAMES if name in config}
        for name, value in named.items():
            if not isinstance(value, bool) and (name != ACCENTS or value is not None):
                received = abridge(repr(value))
                raise ValueError(f"{folder / SETTINGS}: `{name}` must be true or false. Received: {received}.")
        said.append((folder / SETTINGS, named))
    fast, found = folder / FAST_TOKENIZER, list(list_configured(config, str(folder / SETTINGS)))
    if fast.is_file():
        content = read_json_object(fast, read)
        said.append((fast, read_normalizer(content, fast)))
        pieces = _compare_pieces(content, fast, pieces, vocabulary)
        found = [*_list_fast(content, fast), *found]
    cased = _read_manifest(folder / MANIFEST, read)
    said += [] if cased is None else [(folder / MANIFEST, {CASED: not cased})]
    values, sources = _agree(said)
    if (folder / SETTINGS).is_file():
        _check_silence(config, folder / SETTINGS, values, fast)
    lowers, strips = values.get(CASED), values.get(ACCENTS)
    rules = WordRules(strips, values.get(HAN) is not False, _order(pieces, found))
    return Said(None if lowers is None else not lowers, rules, sources)


def read_settings(folder: Path, read: Read = read_file) -> dict[str, Any]:
    """Return `tokenizer_config.json`, with what only `special_tokens_map.json` and `added_tokens.json` say."""
    found: dict[str, Any] = {}
    for name in (SPECIAL_MAP, SETTINGS):
        if (folder / name).is_file():
            found |= read_json_object(folder / name, read)
    if (folder / ADDED_TOKENS).is_file():
        decoder = found.get(DECODER) or {}
        numbers = {str(number): name for name, number in read_json_object(folder / ADDED_TOKENS, read).items()}
        found[DECODER] = numbers | decoder if isinstance(decoder, dict) else decoder
    return found


def pad_right(folder: Path) -> None:
    """Make the tokenizer files of a folder pad on the right, as this package does.

    Padding on the left shifts the positions of the tokens, so a model would give a text other outputs in a batch.
    """
    for name, field_name, left, right in (
        (SETTINGS, "padding_side", "left", "right"),
        (FAST_TOKENIZER, "padding", "Left", "Right"),
    ):
        content = read_json_object(folder / name) if (folder / name).is_file() else {}
        value = content.get(field_name)
        if value == left or isinstance(value, dict) and value.get("direction") == left:
            content[field_name] = {**value, "direction": right} if isinstance(value, dict) else right
            text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
            (folder / name).write_text(text, encoding="utf-8")


def check_settings(config: Mapping[str, Any], source: Path | str, is_word_piece: bool) -> None:
    """Raise ValueError for a field that changes tokenization in a way that is not implemented; warn of unknown ones."""
    name = config.get("tokenizer_class")
    kind = name.removesuffix("Fast") if isinstance(name, str) else name
    if kind is not None and (kind not in BERT_CLASSES if is_word_piece else kind in OTHER_CLASSES):
        raise ValueError(
            f"{source}: `tokenizer_class` must be one that tokenizes as BERT's. Received: {abridge(ascii(name))}, "
            "which is not implemented here. Use `transformers` for this model."
        )
    refused = UNSUPPORTED | (UNSUPPORTED_WORD_PIECE if is_word_piece else {})
    for key, harmless in refused.items():
        if key in config and not any(config[key] is value or config[key] == value for value in harmless):
            raise ValueError(
                f"{source}: `{key}` must be {' or '.join(map(repr, harmless))}. Received: "
                f"{abridge(ascii(config[key]))}, which is not implemented here. Use `transformers` for this model."
            )
    for piece in SPECIAL_PIECES if is_word_piece else ():
        key = f"{piece[1:-1].lower()}_token"
        if (given := _name(config.get(key))) not in (None, piece):
            raise ValueError(
                f"{source}: `{key}` of a vocab.txt must be {piece}. Received: {abridge(ascii(given))}. Rename it there "
                "and in the vocabulary."
            )
    unknown = sorted(config.keys() - KNOWN - refused.keys() - UNSUPPORTED_WORD_PIECE.keys())
    if unknown:
        _warn(f"{source}: unknown fields passed over: {abridge(', '.join(map(ascii, unknown)))}.")


def read_normalizer(content: Mapping[str, Any], source: Path) -> dict[str, bool | None]:
    """Return the settings of the normaliser in a WordPiece `tokenizer.json`, by their names in `tokenizer_config.json`.

    Raises:
        ValueError: the tokenizer is of another kind than BERT's; `files.read_tokenizer_file` reads it if it is alone.
    """
    if not is_bert_pipeline(content):
        raise ValueError(
            f"{source}: must tokenize as BERT, since a vocab.txt is beside it. Received: another kind of tokenizer. "
            "Move the one of the two away that the model was not made with."
        )
    return {ours: content["normalizer"].get(theirs) for ours, theirs in NORMALIZER_NAMES.items()}


def is_bert_pipeline(content: Mapping[str, Any]) -> bool:
    """Return whether a `tokenizer.json` is WordPiece with BERT's normaliser, words, and joining of two texts."""
    model, normalizer, words, joining = (
        value if isinstance(value := content.get(name), dict) else {}
        for name in ("model", "normalizer", "pre_tokenizer", "post_processor")
    )
    given = {theirs: normalizer.get(theirs) for theirs in NORMALIZER_NAMES.values()}
    if not (
        model.get("type") == "WordPiece"
        and model.get("continuing_subword_prefix") == CONTINUATION
        and model.get("unk_token") == "[UNK]"
        and normalizer.get("type") == "BertNormalizer"
        and normalizer.get("clean_text") is True
        and all(isinstance(value, bool) or value is None and name == ACCENTS for name, value in given.items())
        and words.get("type") == "BertPreTokenizer"
    ):
        return False
    if joining.get("type") == "BertProcessing" or not joining:
        return True
    pair = joining.get("pair")
    parts = [next(iter(part.items())) for part in pair if isinstance(part, dict) and part] if pair else []
    ids = [value.get("id") for _, value in parts if isinstance(value, dict)]
    return joining.get("type") == "TemplateProcessing" and ids == ["[CLS]", "A", "[SEP]", "B", "[SEP]"]


def order_pieces(path: Path, ids: Any) -> tuple[str, ...]:
    """Return the pieces of `model.vocab` in the order of their ids; ValueError if these have gaps."""
    pieces: dict[Any, str] = {}
    if isinstance(ids, dict) and all(type(piece_id) is int for piece_id in ids.values()):
        pieces = {piece_id: piece for piece, piece_id in ids.items()}
    if not pieces or len(pieces) < len(ids) or sorted(pieces) != list(range(len(pieces))):
        raise ValueError(f"{path}: `model.vocab` must number its pieces from 0, each once. Copy or save it again.")
    return tuple(pieces[piece_id] for piece_id in range(len(pieces)))


def _compare_pieces(content: Mapping[str, Any], fast: Path, pieces: tuple[str, ...], source: Path) -> tuple[str, ...]:
    """Return the pieces without added tokens; ValueError unless both files of a folder hold the same."""
    found = order_pieces(fast, content["model"].get("vocab"))
    beyond = [piece.content for number, piece in _list_fast(content, fast) if number == -1 or number >= len(found)]
    if pieces not in (found, (*found, *beyond)):
        place = next((place for place, pair in enumerate(zip(pieces, found, strict=False)) if pair[0] != pair[1]), None)
        different = f"{len(pieces):,} and {len(found):,} pieces" if place is None else f"another piece {place}"
        raise ValueError(
            f"{fast}: must hold the pieces of {source.name} beside it. Received: {different}. Move the one of the two "
            "away that the model was not made with."
        )
    return found


def _agree(said: list[tuple[Path, dict[str, bool | None]]]) -> tuple[dict[str, bool | None], dict[str, Path]]:
    """Return the value of each setting and the file that says it; ValueError if two files say different things."""
    values: dict[str, bool | None] = {}
    sources: dict[str, Path] = {}
    for source, found in said:
        for name, value in found.items():
            mine, theirs = _resolve(name, value, found), _resolve(name, values.get(name), values)
            if name in values and mine != theirs:
                raise ValueError(
                    f"{source}: must say of its tokenizer what {sources[name].name} beside it says. Received: "
                    f"`{name}` {str(mine).lower()} and {str(theirs).lower()}. Correct the one that is wrong."
                )
            values.setdefault(name, value)
            sources.setdefault(name, source)
    return values, sources


def _resolve(name: str, value: bool | None, values: Mapping[str, bool | None]) -> bool | None:
    return values.get(CASED, True) if name == ACCENTS and value is None else value


def _check_silence(config: Mapping[str, Any], source: Path, values: Mapping[str, bool | None], fast: Path) -> None:
    """Raise ValueError where `transformers` takes a default of its class, and `tokenizer.json` says another value."""
    name = config.get("tokenizer_class")
    if name in ("PreTrainedTokenizerFast", "TokenizersBackend"):  # these have no defaults of their own
        return
    defaults = {CASED: True, ACCENTS: config.get(CASED, True), HAN: True}
    for key, default in defaults.items():
        value = _resolve(key, values.get(key, default), values)
        if key not in config and fast.is_file() and value != default:
            raise ValueError(
                f"{source}: must say `{key}`, since {fast.name} beside it has another value than the default of "
                f'`transformers`. Received: nothing, and {str(value).lower()} there. Add "{key}": {str(value).lower()}.'
            )


def _list_fast(content: Mapping[str, Any], source: Path) -> Iterator[tuple[int, AddedPiece]]:
    """Yield the id of each added token in a `tokenizer.json`, and the token; BERT's five special ones are left out."""
    added = content.get("added_tokens") or []
    for value in added if isinstance(added, list) else [added]:
        piece = AddedPiece.of(value, str(source))
        if piece.content not in SPECIAL_PIECES:
            number = value.get("id", -1) if isinstance(value, dict) else -1
            yield number if type(number) is int else -1, piece


def list_configured(config: Mapping[str, Any], source: str) -> Iterator[tuple[int, AddedPiece]]:
    """Yield the added tokens that a `tokenizer_config.json` names; an id of -1 is the next one."""
    decoder, extra = config.get(DECODER) or {}, config.get("extra_special_tokens") or []
    named = [*(config.get("additional_special_tokens") or []), *(extra.values() if isinstance(extra, dict) else extra)]
    named += [config[name] for name in ("bos_token", "eos_token") if config.get(name) is not None]
    if not isinstance(decoder, dict) or not all(key.isdecimal() for key in decoder):
        raise ValueError(f"{source}: `{DECODER}` must have the id of each token. Copy or save it again.")
    special = [AddedPiece.of(value, source, special=True) for value in named]
    names = {piece.content for piece in special}
    found = [(int(key), AddedPiece.of(value, source, _name(value) in names)) for key, value in decoder.items()]
    yield from ((number, piece) for number, piece in found if piece.content not in SPECIAL_PIECES)
    yield from ((-1, piece) for piece in special if piece.content not in SPECIAL_PIECES)


def _name(value: Any) -> Any:
    return value.get("content") if isinstance(value, dict) else value


def _order(pieces: tuple[str, ...], found: Iterable[tuple[int, AddedPiece]]) -> tuple[AddedPiece, ...]:
    """Return added tokens in the order of their ids; ValueError if one is not that of the vocabulary, or skips some."""
    ids = {piece: number for number, piece in enumerate(pieces)}
    named = sorted(found, key=lambda pair: pair[0] if pair[0] >= 0 else len(pieces) * 2)
    first = {piece.content: piece for _, piece in reversed(list(named))}
    for number, piece in named:
        ids.setdefault(piece.content, len(ids))
        if number not in (-1, ids[piece.content]):
            raise ValueError(
                f"Added tokens must have the ids that follow those of the vocabulary. Received: "
                f"{abridge(ascii(piece.content))} as {number}, not {ids[piece.content]}. Save the tokenizer again."
            )
    return tuple(sorted(first.values(), key=lambda piece: ids[piece.content]))


def _read_manifest(path: Path, read: Read) -> bool | None:
    """Return whether a published vocabulary, or the one that records were made with, keeps case."""
    if not path.is_file():
        return None
    content = read_json_object(path, read)
    config = content.get("config")
    cased = (
        config.get("cased") if isinstance(config, dict) and content.get("stage") in ("vocabulary", "records") else None
    )
    return cased if isinstance(cased, bool) else None


@lru_cache(maxsize=64)
def _warn(line: str) -> None:
    """Log a line once per process."""
    _logger.warning("%s", line)
