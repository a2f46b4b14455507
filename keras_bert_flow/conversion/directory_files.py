"""Write and read the text files of a model directory: config.json, vocab.txt, tokenizer_config.json, tokenizer.json."""

import json
import shutil
from pathlib import Path
from typing import Any

from keras_bert_flow.json_documents import read_json as read_document
from keras_bert_flow.text.tokenizers.fast_file import encode_fast_tokenizer
from keras_bert_flow.text.tokenizers.loaded import FAST_TOKENIZER
from keras_bert_flow.text.vocabulary.vocab_file import read_vocabulary

TOKENIZER_CONFIG = "tokenizer_config.json"
READ_BYTES = 1 << 20
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


def check_fast_tokenizer(path: Path, vocabulary_size: int) -> None:
    """Raise ValueError if `tokenizer.json` has more pieces than the model has rows, or, in WordPiece, fewer."""
    content = read_json(path)
    names, is_exact = _list_pieces(content), _take_model(content).get("type") == "WordPiece"
    if names and (len(names) > vocabulary_size or is_exact and len(names) < vocabulary_size):
        raise ValueError(
            f"{path}: must have as many pieces as the model. Received: {len(names)} pieces, "
            f"vocabulary_size={vocabulary_size}. Use the tokenizer that the model was made with."
        )


def _take_model(content: dict[str, Any]) -> dict[str, Any]:
    return content["model"] if isinstance(content.get("model"), dict) else {}


def _list_pieces(content: dict[str, Any]) -> set[str]:
    """Return the pieces of a `tokenizer.json`: a Unigram model has a list of pairs, others map pieces to ids."""
    vocabulary, added = _take_model(content).get("vocab"), content.get("added_tokens")
    entries = vocabulary if isinstance(vocabulary, dict | list) else ()
    pieces = [entry[0] if isinstance(entry, list) and entry else entry for entry in entries]
    pieces += [token.get("content") for token in added if isinstance(token, dict)] if isinstance(added, list) else []
    return {piece for piece in pieces if isinstance(piece, str)}


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON object, one field per line."""
    path.write_bytes(_encode_json(content))


def _encode_json(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()


def check_vocabulary(path: Path, vocabulary_size: int) -> None:
    """Raise ValueError unless `vocab.txt` has as many lines as the model has pieces."""
    if not path.is_file():
        raise FileNotFoundError(f"The vocabulary must be a file. Received: {path}.")
    num_pieces, last = 0, b"\n"
    with open(path, "rb") as file:
        while piece := file.read(READ_BYTES):  # a line may be as long as the file
            num_pieces, last = num_pieces + piece.count(b"\n"), piece[-1:]
    num_pieces += last != b"\n"
    if num_pieces != vocabulary_size:
        raise ValueError(
            f"{path}: must have as many lines as the model has pieces. Received: {num_pieces} lines, "
            f"vocabulary_size={vocabulary_size}. Use the vocabulary that the model was made with."
        )


def write_vocabulary(folder: Path, vocabulary_path, cased: bool, max_positions: int) -> None:
    """Copy `vocab.txt`, and write the equivalent `tokenizer.json` and the `tokenizer_config.json` of both."""
    content = encode_fast_tokenizer(read_vocabulary(vocabulary_path), cased)
    if Path(vocabulary_path).resolve() != (folder / "vocab.txt").resolve():
        shutil.copyfile(vocabulary_path, folder / "vocab.txt")
    (folder / TOKENIZER_CONFIG).write_bytes(describe_vocabulary(cased, max_positions))
    (folder / FAST_TOKENIZER).write_bytes(content)


def describe_vocabulary(cased: bool, max_positions: int) -> bytes:
    """Return the content of `tokenizer_config.json` for a `vocab.txt`."""
    fields = {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": not cased,
        "model_max_length": max_positions,
        "tokenize_chinese_chars": True,
        "strip_accents": None,
    }
    return _encode_json(fields | SPECIAL_TOKENS)
