"""Check that records were made with the vocabulary of the model that reads them."""

from pathlib import Path

from keras_bert_flow.text.tokenizers.files import read_pieces


def check_record_vocabulary(path: Path, vocabulary_size: int, other: str | Path | None) -> None:
    """Raise ValueError unless records and model have the same vocabulary.

    Args:
        path: the file of the records' tokenizer; see `files.read_tokenizer_file`.
        vocabulary_size: vocabulary size in the manifest of the records.
        other: the file of the model's tokenizer; None for a new model.
    """
    pieces = read_pieces(path)
    if len(pieces) != vocabulary_size:
        raise ValueError(
            f"Records must come with the vocabulary that they were made with, of {vocabulary_size} pieces. "
            f"Received: {path}, with {len(pieces)}. Build the folder again."
        )
    if other is not None and read_pieces(other) != pieces:
        raise ValueError(
            f"Records must be made with the model's vocabulary. Received: {path}, which is not that of {other}. "
            f"Build the records again with --vocab {other}."
        )
