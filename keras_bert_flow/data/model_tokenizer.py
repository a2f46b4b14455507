"""Read the tokenizer of a model directory."""

from pathlib import Path

from keras_bert_flow.json_documents import read_json_object
from keras_bert_flow.terminal import abridge
from keras_bert_flow.text.tokenizers.files import find_tokenizer_file, read_tokenizer_file
from keras_bert_flow.text.tokenizers.tokenizer import Tokenizer


def read_tokenizer(model: Path) -> Tokenizer:
    """Return the tokenizer of a model directory, from `vocab.txt`, or else from `tokenizer.json`.

    `tokenizer_config.json` tells whether a `vocab.txt` is cased; `tokenizer.json` tells it itself.

    Raises:
        FileNotFoundError: the directory has neither file.
        ValueError: a file is damaged, or the tokenizer in `tokenizer.json` joins pairs of texts differently.
    """
    file, settings = find_tokenizer_file(model), model / "tokenizer_config.json"
    if file.suffix == ".json":
        return read_tokenizer_file(file)
    values = read_json_object(settings) if settings.is_file() else {}
    lower_case = values.get("do_lower_case", True)
    if not isinstance(lower_case, bool):
        raise ValueError(f"{settings}: `do_lower_case` must be true or false. Received: {abridge(repr(lower_case))}.")
    return read_tokenizer_file(file, cased=not lower_case)
