"""The tokenizer of a KerasHub preset: its settings in `tokenizer.json`, its vocabulary under `assets/tokenizer`."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers, processors
from tokenizers.models import BPE

from keras_bert_flow.conversion.directory_files import (
    TOKENIZER_CONFIG,
    check_vocabulary,
    describe_vocabulary,
    read_json,
)
from keras_bert_flow.conversion.formats.keras_hub.objects import TOKENIZER, read_object, serialise
from keras_bert_flow.conversion.tables.keras_hub import BYTE_PAIRS, HUB_FAMILIES, WORD_PIECE, HubFamily
from keras_bert_flow.json_documents import read_json_object
from keras_bert_flow.terminal import abridge
from keras_bert_flow.text.tokenizers.added import WordRules
from keras_bert_flow.text.tokenizers.fast_file import encode_fast_tokenizer
from keras_bert_flow.text.tokenizers.files import find_tokenizer_file, read_tokenizer_file
from keras_bert_flow.text.tokenizers.settings import FAST_TOKENIZER
from keras_bert_flow.text.tokenizers.wordpiece import WordPieceTokenizer
from keras_bert_flow.text.vocabulary.vocab_file import CONTINUATION, VOCABULARY_FILE, read_vocabulary, write_vocabulary

ASSETS = Path("assets") / "tokenizer"
WORD_PIECES, BYTE_PAIR_IDS, MERGES = "vocabulary.txt", "vocabulary.json", "merges.txt"
UNKNOWN = "[UNK]"
RELEASED_PAD_ID = 1  # of all released RoBERTa models
SPECIAL_TOKENS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
_WORD_PIECE_RULES = {"split": True, "suffix_indicator": CONTINUATION, "oov_token": UNKNOWN, "special_tokens": None}


def write_tokenizer(hub: HubFamily, source: Path, folder: Path) -> dict[str, Any] | None:
    """Write a tokenizer to a preset, and return its serialised object; None if it is missing or KerasHub lacks it.

    Args:
        source: a folder with tokenizer files in Hugging Face's layout.
    """
    file = find_tokenizer_file(source)
    if not file.is_file():
        return None
    tokenizer = read_tokenizer_file(file)
    model = None if isinstance(tokenizer, WordPieceTokenizer) else _take_byte_pairs(read_json_object(file))
    assets = folder / ASSETS
    config: dict[str, Any] = {"config_file": FAST_TOKENIZER}
    if hub.tokenizer == WORD_PIECE and isinstance(tokenizer, WordPieceTokenizer):
        if tokenizer.rules.added:
            raise ValueError(
                "A tokenizer of KerasHub must have no added tokens. Received: "
                f"{abridge(tokenizer.rules.added[0].content)} of {file}. Choose another format."
            )
        assets.mkdir(parents=True)
        write_vocabulary(assets / WORD_PIECES, tokenizer.pieces)
        fields: dict[str, Any] = {"vocabulary": None, "sequence_length": None}
        fields |= {"lowercase": not tokenizer.cased, "strip_accents": tokenizer.strips_accents}
        fields |= {} if tokenizer.rules.split_han else {"split_on_cjk": False}
        config |= fields | _WORD_PIECE_RULES | {"special_tokens_in_strings": False}
    elif hub.tokenizer == BYTE_PAIRS and model is not None:
        assets.mkdir(parents=True)
        (assets / BYTE_PAIR_IDS).write_text(json.dumps(model["vocab"]), encoding="utf-8")
        lines = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
        (assets / MERGES).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        unsplittable = [token for token in SPECIAL_TOKENS if token != "<unk>"]
        config |= {"sequence_length": None, "add_prefix_space": False, "unsplittable_tokens": unsplittable}
    else:
        return None
    return serialise(hub, TOKENIZER, config, "int32")


def read_tokenizer(folder: Path, vocabulary_size: int, max_positions: int) -> tuple[dict[str, bytes | Path], list[str]]:
    """Return the tokenizer files in Hugging Face's layout, none if the preset has no tokenizer, and remarks.

    Raises:
        FileNotFoundError: a file of it is missing.
        ValueError: it is damaged, or has settings that Hugging Face's tokenizer does not have.
    """
    path = folder / FAST_TOKENIZER
    if not path.is_file():
        return {}, ["no tokenizer, as the preset has none"]
    found = read_object(path)
    hub, assets = HUB_FAMILIES[found.family], folder / ASSETS
    if hub.tokenizer == WORD_PIECE:
        check_vocabulary(assets / WORD_PIECES, vocabulary_size)
        return _read_word_pieces(found.config, path, assets / WORD_PIECES, max_positions)
    if hub.tokenizer == BYTE_PAIRS:
        return {FAST_TOKENIZER: _read_byte_pairs(found.config, path, assets)}, []
    return {}, [f"tokenizer left out, {hub.tokenizer}: put the tokenizer.json of the model beside"]


def find_pad_id(folder: Path) -> int:
    """Return the id of RoBERTa's padding token, which determines the offset of its positions."""
    path = folder / ASSETS / BYTE_PAIR_IDS
    pad_id = read_json(path).get("<pad>") if path.is_file() else None
    return pad_id if type(pad_id) is int and pad_id >= 0 else RELEASED_PAD_ID


def _read_word_pieces(
    config: Mapping[str, Any], path: Path, vocabulary: Path, max_positions: int
) -> tuple[dict[str, bytes | Path], list[str]]:
    for name, rule in _WORD_PIECE_RULES.items():
        if config.get(name, rule) not in (rule, []):
            raise ValueError(f"{path}: `{name}` must be {rule!r}. Received: {abridge(ascii(config[name]))}.")
    lowercase, strip_accents = (config.get(name, False) for name in ("lowercase", "strip_accents"))
    if not isinstance(lowercase, bool):
        raise ValueError(f"{path}: `lowercase` must be true or false. Received: {abridge(ascii(lowercase))}.")
    split_han = config.get("split_on_cjk", True)
    if not isinstance(strip_accents, bool) or not isinstance(split_han, bool):
        raise ValueError(f"{path}: `strip_accents` and `split_on_cjk` must be true or false. Correct them.")
    tokenizer = WordPieceTokenizer(read_vocabulary(vocabulary), not lowercase, WordRules(strip_accents, split_han))
    files: dict[str, Path | bytes] = {
        VOCABULARY_FILE: vocabulary,
        TOKENIZER_CONFIG: describe_vocabulary(tokenizer, max_positions),
        FAST_TOKENIZER: encode_fast_tokenizer(tokenizer.vocabulary, tokenizer.cased, tokenizer.rules),
    }
    return files, []


def _read_byte_pairs(config: Mapping[str, Any], path: Path, assets: Path) -> bytes:
    """Return the content of RoBERTa's `tokenizer.json`."""
    if config.get("add_prefix_space", False) is not False:
        raise ValueError(f"{path}: `add_prefix_space` must be false. Received: {config['add_prefix_space']!r}.")
    ids, merges = read_json(assets / BYTE_PAIR_IDS), assets / MERGES
    if not merges.is_file():
        raise FileNotFoundError(f"A tokenizer must have its merges. Received: {merges}, which is no file. Copy it.")
    lines = merges.read_text(encoding="utf-8").split("\n")
    pairs: Any = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
    try:
        tokenizer = Tokenizer(BPE(ids, pairs))
        tokenizer.post_processor = processors.RobertaProcessing(
            ("</s>", ids["</s>"]), ("<s>", ids["<s>"]), trim_offsets=True, add_prefix_space=False
        )
    except Exception as error:  # the library raises bare `Exception`
        raise ValueError(f"{assets}: no byte-level BPE of RoBERTa ({abridge(repr(error))}). Copy it again.") from None
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = [token for token in SPECIAL_TOKENS if token in ids]
    tokenizer.add_special_tokens([AddedToken(token, lstrip=token == "<mask>", special=True) for token in special])
    return tokenizer.to_str(pretty=True).encode()


def _take_byte_pairs(content: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the model in RoBERTa's `tokenizer.json`; None for other kinds, which KerasHub's class lacks."""
    model, splitter = content.get("model"), content.get("pre_tokenizer")
    is_known = (
        isinstance(model, dict)
        and model.get("type") == "BPE"
        and isinstance(splitter, dict)
        and splitter.get("type") == "ByteLevel"
        and splitter.get("add_prefix_space") is False
        and content.get("normalizer") is None
        and {"<s>", "<pad>", "</s>", "<mask>"} <= set(model.get("vocab", {}))
    )
    return model if is_known else None
