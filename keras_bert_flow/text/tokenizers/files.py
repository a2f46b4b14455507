"""Tokenizer files: `vocab.txt` for WordPiece, or `tokenizer.json` for any tokenizer."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keras_bert_flow.json_documents import read_json_object
from keras_bert_flow.terminal import abridge
from keras_bert_flow.text.tokenizers.loaded import FAST_TOKENIZER, SETTINGS, LoadedTokenizer
from keras_bert_flow.text.tokenizers.tokenizer import Tokenizer
from keras_bert_flow.text.tokenizers.wordpiece import WordPieceTokenizer
from keras_bert_flow.text.vocabulary.vocab_file import CONTINUATION, VOCABULARY_FILE, check_vocabulary, read_vocabulary


def find_tokenizer_file(folder: str | Path) -> Path:
    """Return the tokenizer file of a folder: `vocab.txt`, or without it `tokenizer.json`.

    If there is neither, it is `vocab.txt`, and reading it fails.
    """
    vocabulary, fast = Path(folder) / VOCABULARY_FILE, Path(folder) / FAST_TOKENIZER
    return fast if fast.is_file() and not vocabulary.is_file() else vocabulary


def read_tokenizer_file(path: str | Path, cased: bool | None = None) -> Tokenizer:
    """Read a tokenizer from its file.

    Args:
        path: a vocabulary with one piece per line, or a `tokenizer.json`, which a `tokenizer_config.json` next to it
            may extend.
        cased: whether WordPiece keeps case. None: as in `tokenizer.json`, otherwise False. Other tokenizers define it
            themselves.
    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is damaged, joins texts in another way than BERT, or is WordPiece with another value of `cased`.
    """
    path = Path(path)
    if path.suffix != ".json":
        return WordPieceTokenizer.from_file(path, bool(cased))
    if not path.is_file():
        raise FileNotFoundError(f"A tokenizer must be a file. Received: {path}, which is not one. Check the path.")
    if not _is_wordpiece(path):
        return LoadedTokenizer.from_file(path)
    tokenizer = _read_bert_tokenizer(path)
    if cased not in (None, tokenizer.cased):
        raise ValueError(
            f"`cased` must be as the tokenizer has it. Received: {str(cased).lower()}, {path} of "
            f"{str(tokenizer.cased).lower()}. Set it to that."
        )
    return tokenizer


def read_pieces(path: str | Path) -> tuple[str, ...]:
    """Return the pieces of a tokenizer file in the order of ids; see `read_tokenizer_file`."""
    return read_tokenizer_file(path).pieces if Path(path).suffix == ".json" else tuple(read_vocabulary(path))


def list_tokenizer_files(path: str | Path) -> list[Path]:
    """Return the files of a tokenizer: this one, and the settings next to a `tokenizer.json`."""
    settings = Path(path).with_name(SETTINGS)
    return [Path(path), *([settings] if Path(path).suffix == ".json" and settings.is_file() else [])]


def copy_tokenizer(path: str | Path, folder: Path) -> None:
    """Copy a tokenizer into a folder: `vocab.txt` unchanged, or the files of a `tokenizer.json`."""
    if Path(path).suffix == ".json":
        read_tokenizer_file(path).write(folder)
    else:
        (folder / VOCABULARY_FILE).write_bytes(Path(path).read_bytes())


def _is_wordpiece(path: Path) -> bool:
    """Return whether it is WordPiece of words; what divides them further is loaded as it stands."""
    content = read_json_object(path)
    return _take(content, "model").get("type") == "WordPiece" and not _take(content, "pre_tokenizer").get(
        "pretokenizers"
    )


def _read_bert_tokenizer(path: Path) -> Tokenizer:
    content = read_json_object(path)
    model, normalizer = (_take(content, name) for name in ("model", "normalizer"))
    lower_case = normalizer.get("lowercase")
    expected = {
        "model.continuing_subword_prefix": (model.get("continuing_subword_prefix"), (CONTINUATION,)),
        "normalizer.type": (normalizer.get("type"), ("BertNormalizer",)),
        "normalizer.lowercase": (lower_case, (True, False)),
        "normalizer.strip_accents": (normalizer.get("strip_accents"), (None, lower_case)),
        "normalizer.clean_text": (normalizer.get("clean_text"), (True,)),
        "normalizer.handle_chinese_chars": (normalizer.get("handle_chinese_chars"), (True,)),
        "pre_tokenizer.type": (_take(content, "pre_tokenizer").get("type"), ("BertPreTokenizer",)),
    }
    for name, (value, known) in expected.items():
        if not any(value is each or (value == each and isinstance(value, str)) for each in known):
            raise ValueError(
                f"{path}: must be BERT's tokenizer. Received: `{name}` = {abridge(repr(value))}, not {known[0]!r}. "
                "Put the vocab.txt of the model beside it."
            )
    pieces = _order_pieces(path, model.get("vocab"))
    check_vocabulary(pieces, str(path))
    return WordPieceTokenizer(pieces, cased=not lower_case)


def _order_pieces(path: Path, ids: Any) -> list[str]:
    pieces: dict[Any, str] = {}
    if isinstance(ids, dict) and all(type(piece_id) is int for piece_id in ids.values()):
        pieces = {piece_id: piece for piece, piece_id in ids.items()}
    if not pieces or len(pieces) < len(ids) or sorted(pieces) != list(range(len(pieces))):
        raise ValueError(f"{path}: `model.vocab` must number its pieces from 0, each once. Copy or save it again.")
    return [pieces[piece_id] for piece_id in range(len(pieces))]


def _take(content: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = content.get(name)
    return value if isinstance(value, dict) else {}
