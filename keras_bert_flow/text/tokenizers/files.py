"""Tokenizer files: `vocab.txt` for WordPiece, or `tokenizer.json` for any tokenizer."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from keras_bert_flow.files.documents import Read, read_file, read_json_object
from keras_bert_flow.text.tokenizers.loaded import LoadedTokenizer
from keras_bert_flow.text.tokenizers.settings import (
    ADDED_TOKENS,
    CASED,
    FAST_TOKENIZER,
    SPECIAL_MAP,
    Said,
    is_bert_pipeline,
    order_pieces,
    read_said,
)
from keras_bert_flow.text.tokenizers.tokenizer import Tokenizer
from keras_bert_flow.text.tokenizers.wordpiece import SETTINGS, WordPieceTokenizer
from keras_bert_flow.text.vocabulary.vocab_file import VOCABULARY_FILE, check_vocabulary, read_vocabulary

CASED_SHARE = 0.01  # of pieces with capital letters: a vocabulary with more is taken to be cased


def find_tokenizer_file(folder: str | Path) -> Path:
    """Return the tokenizer file of a folder: `vocab.txt`, or without it `tokenizer.json`.

    If there is neither, it is `vocab.txt`, and reading it fails.
    """
    vocabulary, fast = Path(folder) / VOCABULARY_FILE, Path(folder) / FAST_TOKENIZER
    return fast if fast.is_file() and not vocabulary.is_file() else vocabulary


def read_tokenizer_file(path: str | Path, cased: bool | None = None, read: Read = read_file) -> Tokenizer:
    """Read a tokenizer from its file, with what the files beside it say; see `settings.read_said`.

    Args:
        path: a vocabulary with one piece per line, or a `tokenizer.json`.
        cased: whether WordPiece keeps case. None: as the files say, otherwise False. Other tokenizers define it
            themselves.
        read: as for `documents.read_json`.
    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is damaged, joins texts in another way than BERT, or is WordPiece with another value of `cased`.
    """
    path = Path(path)
    if (found := _read_word_piece(path, read)) is None:
        return LoadedTokenizer.from_file(path, read)
    vocabulary, said = found
    if said.cased is not None and cased not in (None, said.cased):
        raise ValueError(
            f"`cased` must be as the tokenizer has it. Received: {str(cased).lower()}, {path} of "
            f"{str(said.cased).lower()}, by {said.sources[CASED].name} beside it. Give --"
            f"{'cased' if said.cased else 'uncased'}, or set `vocabulary.cased`."
        )
    return WordPieceTokenizer(vocabulary, bool(said.cased if cased is None else cased), said.rules)


def read_word_piece(path: str | Path, cased: bool | None = None, read: Read = read_file) -> WordPieceTokenizer:
    """Read a `vocab.txt`, which is always WordPiece, as `read_tokenizer_file` does."""
    tokenizer = read_tokenizer_file(path, cased, read)
    if not isinstance(tokenizer, WordPieceTokenizer):
        raise ValueError(f"A vocabulary must be a vocab.txt. Received: {path}, another tokenizer. Name the vocab.txt.")
    return tokenizer


def find_case(path: str | Path, given: bool | None) -> bool:
    """Return whether WordPiece keeps case: as given, or else as the files say; False for another tokenizer.

    Raises:
        FileNotFoundError, ValueError: as for `read_tokenizer_file`; or nothing says it, and the pieces have capitals.
    """
    if given is not None or (found := _read_word_piece(Path(path))) is None:
        return bool(given)
    vocabulary, said = found
    if said.cased is None and looks_cased(vocabulary):
        raise ValueError(
            f"It must be known whether a vocabulary keeps case. Received: {path}, with capital letters, and nothing "
            "beside it says so. Give --cased or --uncased, or set `vocabulary.cased`."
        )
    return bool(said.cased)


def looks_cased(pieces: Iterable[str]) -> bool:
    """Return whether more than `CASED_SHARE` of the pieces have a capital letter, special and unused ones aside."""
    ordinary = [piece for piece in pieces if not (piece.startswith("[") and piece.endswith("]"))]
    return sum(piece != piece.lower() for piece in ordinary) > CASED_SHARE * len(ordinary)


def read_pieces(path: str | Path) -> tuple[str, ...]:
    """Return the pieces of a tokenizer file in the order of ids; see `read_tokenizer_file`."""
    return read_tokenizer_file(path).pieces


def list_tokenizer_files(path: str | Path) -> list[Path]:
    """Return the files of a tokenizer: this one, and those beside it that say something of it."""
    beside = (Path(path).with_name(name) for name in (SETTINGS, FAST_TOKENIZER, SPECIAL_MAP, ADDED_TOKENS))
    return [Path(path), *(file for file in beside if file.is_file() and file != Path(path))]


def copy_tokenizer(path: str | Path, cased: bool, folder: Path, read: Read = read_file) -> None:
    """Copy a tokenizer into a folder: `vocab.txt` unchanged with what it does not hold, or a `tokenizer.json`."""
    tokenizer = read_tokenizer_file(path, cased, read)
    if Path(path).suffix != ".json" and isinstance(tokenizer, WordPieceTokenizer):
        (folder / VOCABULARY_FILE).write_bytes(read(Path(path), -1))
        tokenizer.write_rules(folder)
    else:
        tokenizer.write(folder)


def describe_rules(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return what keys and manifests say of a WordPiece tokenizer besides its case; {} if it is as the original."""
    rules = tokenizer.rules.describe() if isinstance(tokenizer, WordPieceTokenizer) else {}
    return {"tokenizer": rules} if rules else {}


def describe_beside(path: str | Path) -> dict[str, Any]:
    """Return what a key must hold besides the digest of a tokenizer file: what other files say of a `vocab.txt`."""
    if Path(path).suffix == ".json" or len(list_tokenizer_files(path)) == 1:
        return {}
    return describe_rules(read_tokenizer_file(path))


def find_difference(mine: Tokenizer, other: Tokenizer) -> str | None:
    """Return what two tokenizers do differently, for a message; None if they give every text the same ids."""
    facts, others = mine.describe(), other.describe()
    if (name := next((name for name in {**facts, **others} if facts.get(name) != others.get(name)), None)) is None:
        return "other pieces" if mine.pieces != other.pieces else None
    if mine.pieces != other.pieces:
        return "other pieces"
    values = [str(values.get(name)) for values in (facts, others)]
    return f"`{name}` {' and '.join(values)}" if max(map(len, values)) < 40 else f"another `{name}`"


def _read_word_piece(path: Path, read: Read = read_file) -> tuple[tuple[str, ...], Said] | None:
    """Return the pieces of a WordPiece file, and what the files say of it; None for another tokenizer."""
    if path.suffix != ".json":
        vocabulary = read_vocabulary(path, read)
    elif not path.is_file():
        raise FileNotFoundError(f"A tokenizer must be a file. Received: {path}, which is not one. Check the path.")
    elif is_bert_pipeline(content := read_json_object(path, read)):
        vocabulary = order_pieces(path, content["model"].get("vocab"))
        check_vocabulary(vocabulary, str(path))
    else:
        return None
    return vocabulary, read_said(path, vocabulary, read)
