"""Read the tokenizer of a model directory."""

from pathlib import Path

from keras_bert_flow.stores.fetching import fetch
from keras_bert_flow.text.tokenizers.files import find_tokenizer_file, read_tokenizer_file
from keras_bert_flow.text.tokenizers.tokenizer import Tokenizer


def read_tokenizer(model: str | Path) -> Tokenizer:
    """Return the tokenizer of a model directory, from `vocab.txt`, or else from `tokenizer.json`.

    Without a word about case in its files a `vocab.txt` is uncased, as in `transformers`.

    Args:
        model: local or remote location; see `stores.fetching.fetch`.
    Raises:
        FileNotFoundError: the directory has neither file.
        ValueError: a file is damaged, two contradict each other, or the tokenizer is of a kind that is not implemented.
    """
    return read_tokenizer_file(find_tokenizer_file(fetch(model)))
