"""Check that records were made with the tokenizer of the model that reads them."""

from pathlib import Path

from keras_bert_flow.text.tokenizers.files import find_difference, read_tokenizer_file


def check_record_vocabulary(path: Path, vocabulary_size: int, other: str | Path | None) -> None:
    """Raise ValueError unless records and model have the same vocabulary, and make it into the same tokens.

    Args:
        path: the file of the records' tokenizer; see `files.read_tokenizer_file`.
        vocabulary_size: vocabulary size in the manifest of the records.
        other: the file of the model's tokenizer; None for a new model.
    """
    tokenizer = read_tokenizer_file(path)
    if tokenizer.vocabulary_size != vocabulary_size:
        raise ValueError(
            f"Records must come with the vocabulary that they were made with, of {vocabulary_size} pieces. "
            f"Received: {path}, with {tokenizer.vocabulary_size}. Build the folder again."
        )
    if other is None:
        return
    if (difference := find_difference(tokenizer, read_tokenizer_file(other))) is not None:
        raise ValueError(
            f"Records must be made with the model's tokenizer. Received: {path} and {other}, with {difference}. "
            f"Build the records again with --vocab {other}."
        )
