"""Write and read the text files of a model directory: config.json, vocab.txt, tokenizer_config.json, tokenizer.json."""

import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from keras_bert_flow.json_documents import read_json as read_document
from keras_bert_flow.text.tokenizers.fast_file import encode_fast_tokenizer
from keras_bert_flow.text.tokenizers.files import list_tokenizer_files, read_tokenizer_file, read_word_piece
from keras_bert_flow.text.tokenizers.settings import FAST_TOKENIZER
from keras_bert_flow.text.tokenizers.wordpiece import WordPieceTokenizer

TOKENIZER_CONFIG = "tokenizer_config.json"
READ_BYTES = 1 << 20
# Tables are padded to a multiple of 8 or 64, in Megatron-LM of 128 per process; a few are a little larger for no such
# reason.
PADDED_TO, MAX_PADDING, MAX_SPARE_SHARE = 8, 1024, 1 / 16
SPECIAL_TOKENS = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "sep", "pad", "cls", "mask")}


def read_json(path: Path, kind: type = dict) -> Any:
    """Read a JSON object, or another `kind` of value.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is not JSON, or not of that kind.
    """
    if not path.is_file():
        raise FileNotFoundError(
            f"A model directory must hold {path.name}. Received: {path.parent}, without it. Check the path."
        )
    try:
        content = read_document(path)
    except ValueError as error:
        raise ValueError(f"{path}: not JSON ({error}). Copy or save it again.") from None
    if not isinstance(content, kind):
        name = "object" if kind is dict else "array"
        raise ValueError(f"{path}: must be a JSON {name}. Received: {type(content).__name__}.")
    return content


def count_pieces(folder: Path, vocabulary_size: int) -> int:
    """Return the number of pieces of a directory's tokenizer, at most the number of rows of the embeddings.

    Without a tokenizer, or if it does not say, this is `vocabulary_size`; errors as for `check_vocabulary`.
    """
    if (folder / "vocab.txt").is_file():
        return check_vocabulary(folder / "vocab.txt", vocabulary_size)
    if (folder / FAST_TOKENIZER).is_file():
        return check_fast_tokenizer(folder / FAST_TOKENIZER, vocabulary_size)
    return vocabulary_size


def check_fast_tokenizer(path: Path, vocabulary_size: int) -> int:
    """Return the number of pieces of a `tokenizer.json`; errors as for `check_vocabulary`.

    Raises:
        ValueError: it has more pieces than the model has rows, or, in WordPiece, far fewer.
    """
    content = read_json(path)
    count, is_word_piece = _count_pieces(content), _take_model(content).get("type") == "WordPiece"
    if count > vocabulary_size or is_word_piece and count and not _is_padded(count, vocabulary_size):
        raise ValueError(_describe_misfit(path, "pieces as the model", count, vocabulary_size))
    return count or vocabulary_size


def _take_model(content: dict[str, Any]) -> dict[str, Any]:
    return content["model"] if isinstance(content.get("model"), dict) else {}


def _list_pieces(content: dict[str, Any]) -> set[str]:
    """Return the pieces of a `tokenizer.json`: a Unigram model has a list of pairs, others map pieces to ids."""
    vocabulary, added = _take_model(content).get("vocab"), content.get("added_tokens")
    entries = vocabulary if isinstance(vocabulary, dict | list) else ()
    pieces = [entry[0] if isinstance(entry, list) and entry else entry for entry in entries]
    pieces += [token.get("content") for token in added if isinstance(token, dict)] if isinstance(added, list) else []
    return {piece for piece in pieces if isinstance(piece, str)}


def _count_pieces(content: dict[str, Any]) -> int:
    """Return the number of pieces of a `tokenizer.json`, at least its highest id and 1."""
    vocabulary, added = _take_model(content).get("vocab"), content.get("added_tokens")
    ids = [*vocabulary.values()] if isinstance(vocabulary, dict) else []
    ids += [token.get("id") for token in added if isinstance(token, dict)] if isinstance(added, list) else []
    return max([len(_list_pieces(content)), *(number + 1 for number in ids if type(number) is int)])


def _is_padded(count: int, rows: int) -> bool:
    """Return whether a table of so many rows can be that of so many pieces."""
    spare = rows - count
    return 0 <= spare <= MAX_SPARE_SHARE * rows or rows % PADDED_TO == 0 and 0 <= spare < MAX_PADDING


def _describe_misfit(path: Path, what: str, count: int, vocabulary_size: int) -> str:
    remedy = "Use the one that the model was made with"
    if count > vocabulary_size:
        remedy += f", or give the model more rows, with `resize_token_embeddings({count})` of transformers"
    return (
        f"{path}: must have as many {what}. Received: {count} {what.split()[0]}, vocabulary_size={vocabulary_size}. "
        f"{remedy}."
    )


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON object, one field per line."""
    path.write_bytes(_encode_json(content))


def _encode_json(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()


def check_vocabulary(path: Path, vocabulary_size: int, num_pieces: int | None = None) -> int:
    """Return the number of pieces of a `vocab.txt`.

    Args:
        vocabulary_size: number of rows of the embeddings, which some programs pad for speed.
        num_pieces: the number that the file must have, if known.
    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it has more pieces than the model has rows, or far fewer.
    """
    if not path.is_file():
        raise FileNotFoundError(f"The vocabulary must be a file. Received: {path}.")
    count, last = 0, b"\n"
    with open(path, "rb") as file:
        while piece := file.read(READ_BYTES):  # a line may be as long as the file
            count, last = count + piece.count(b"\n"), piece[-1:]
    count += last != b"\n"
    if count < vocabulary_size and len(list_tokenizer_files(path)) > 1:
        with suppress(ValueError):  # of a damaged file; whoever reads the tokenizer says so
            count = max(count, len(read_tokenizer_file(path).pieces))  # with added tokens
    if num_pieces not in (None, count):
        raise ValueError(
            f"{path}: must have as many lines as the model has pieces. Received: {count} lines, {num_pieces} pieces. "
            "Use the vocabulary that the model was made with."
        )
    if not _is_padded(count, vocabulary_size):
        raise ValueError(_describe_misfit(path, "lines as the model has pieces", count, vocabulary_size))
    return count


def write_vocabulary(folder: Path, vocabulary_path, cased: bool | None, max_positions: int) -> None:
    """Copy `vocab.txt`, and write the equivalent `tokenizer.json` and the `tokenizer_config.json` of both."""
    tokenizer = read_word_piece(vocabulary_path, cased)
    content = encode_fast_tokenizer(tokenizer.vocabulary, tokenizer.cased, tokenizer.rules)
    if Path(vocabulary_path).resolve() != (folder / "vocab.txt").resolve():
        shutil.copyfile(vocabulary_path, folder / "vocab.txt")
    (folder / TOKENIZER_CONFIG).write_bytes(describe_vocabulary(tokenizer, max_positions))
    (folder / FAST_TOKENIZER).write_bytes(content)


def describe_vocabulary(tokenizer: WordPieceTokenizer, max_positions: int) -> bytes:
    """Return the content of `tokenizer_config.json` for a `vocab.txt`."""
    return _encode_json(tokenizer.describe_settings() | {"model_max_length": max_positions} | SPECIAL_TOKENS)
