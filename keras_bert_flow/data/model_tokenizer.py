"""Read the tokenizer of a model directory."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keras_bert_flow.json_documents import read_json_object
from keras_bert_flow.terminal import abridge
from keras_bert_flow.text.tokenizers.loaded import FAST_TOKENIZER, LoadedTokenizer
from keras_bert_flow.text.tokenizers.tokenizer import Tokenizer
from keras_bert_flow.text.tokenizers.wordpiece import WordPieceTokenizer
from keras_bert_flow.text.vocabulary.vocab_file import CONTINUATION, VOCABULARY_FILE, check_vocabulary


def read_tokenizer(model: Path) -> Tokenizer:
    """Return the tokenizer of a model directory: of `vocab.txt`, or without it of `tokenizer.json`.

    `tokenizer_config.json` says whether a `vocab.txt` keeps case; `tokenizer.json` says it itself.

    Raises:
        FileNotFoundError: the directory has neither file.
        ValueError: a file is damaged, or `tokenizer.json` is of a tokenizer that joins texts in another way.
    """
    fast = model / FAST_TOKENIZER
    if not (model / VOCABULARY_FILE).is_file() and fast.is_file():
        return _read_bert_tokenizer(fast) if _is_wordpiece(fast) else LoadedTokenizer.from_folder(model)
    settings = model / "tokenizer_config.json"
    values = read_json_object(settings) if settings.is_file() else {}
    lower_case = values.get("do_lower_case", True)
    if not isinstance(lower_case, bool):
        raise ValueError(f"{settings}: `do_lower_case` must be true or false. Received: {abridge(repr(lower_case))}.")
    return WordPieceTokenizer.from_file(model / VOCABULARY_FILE, cased=not lower_case)


def _is_wordpiece(path: Path) -> bool:
    return _take(read_json_object(path), "model").get("type") == "WordPiece"


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
