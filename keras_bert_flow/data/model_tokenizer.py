"""Read the tokenizer of a model directory."""

from pathlib import Path

from keras_bert_flow.json_documents import read_json_object
from keras_bert_flow.terminal import abridge
from keras_bert_flow.text.tokenizer import WordPieceTokenizer


def read_tokenizer(model: Path) -> WordPieceTokenizer:
    """Return the tokenizer of a model directory; its `tokenizer_config.json` says whether it keeps case."""
    settings = model / "tokenizer_config.json"
    values = read_json_object(settings) if settings.is_file() else {}
    lower_case = values.get("do_lower_case", True)
    if not isinstance(lower_case, bool):
        raise ValueError(f"{settings}: `do_lower_case` must be true or false. Received: {abridge(repr(lower_case))}.")
    return WordPieceTokenizer.from_file(model / "vocab.txt", cased=not lower_case)
