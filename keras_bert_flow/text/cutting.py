"""Split long records into shorter training sequences, and keep the context around each of them."""

import numpy as np

from keras_bert_flow.text.objectives.mlm import SPECIAL_TOKENS
from keras_bert_flow.text.objectives.registry import find_objective


def check_cutting(objective: str, record_length: int, sequence_length: int) -> None:
    """Raise ValueError unless records of an objective have this sequence length or can be split into it."""
    is_divisible = find_objective(objective).is_divisible  # raises for an unknown objective, whatever the lengths
    if sequence_length < record_length and not is_divisible:
        raise ValueError(
            "`pretraining.sequence_length` must be that of the records, unless their objective is mlm: pairs cannot be "
            f"cut. Received: {sequence_length}, records of {record_length} tokens, objective {objective}. Leave it out."
        )
    if sequence_length <= SPECIAL_TOKENS:
        raise ValueError(
            "`pretraining.sequence_length` must leave room for text between [CLS] and [SEP]. Received: "
            f"{sequence_length}. Raise it, or leave it out."
        )
    if sequence_length > record_length:
        raise ValueError(
            "`pretraining.sequence_length` must be at most that of the records. Received: "
            f"{sequence_length}, records of {record_length} tokens. Lower it, or leave it out."
        )


def count_sequences(record_length: int, length: int) -> int:
    """Return the number of sequences that each record is split into, so that no token of a full one is left out."""
    return -(-(record_length - SPECIAL_TOKENS) // (length - SPECIAL_TOKENS))


def cut_record(tokens: np.ndarray, number: int, length: int, record_length: int) -> dict[str, np.ndarray]:
    """Return one of the sequences of a record, evenly spaced in its text, and the rest of its documents.

    Args:
        tokens: int, (n,), before masking, without padding: [CLS] text [SEP], with a [SEP] between two documents.
        number: index of the sequence, below `count_sequences`. Sequences of a record that is not full overlap.
        length: tokens of a sequence, [CLS] and [SEP] included.
        record_length: tokens of a full record.
    Returns:
        input_ids and input_mask, int, (length,), padded with zeros; context_ids, int, (record_length - 2,), the text
        padded with zeros, and context_weights, float32, of that shape: 1 for tokens outside the sequence that are in a
        document of the sequence, 0 elsewhere.
    """
    text, separator, room = tokens[1:-1], tokens[-1], length - SPECIAL_TOKENS
    start = number * max(0, len(text) - room) // max(1, count_sequences(record_length, length) - 1)
    stop = min(start + room, len(text))
    borders = np.flatnonzero(text == separator)
    before, after = borders[borders < start], borders[borders >= stop]
    is_context = np.zeros(len(text), bool)
    is_context[before[-1] + 1 if len(before) else 0 : after[0] if len(after) else len(text)] = True
    is_context[start:stop] = False
    token_ids = np.concatenate([tokens[:1], text[start:stop], tokens[-1:]])
    return {
        "input_ids": _pad(token_ids, length),
        "input_mask": _pad(np.ones_like(token_ids), length),
        "context_ids": _pad(text, record_length - SPECIAL_TOKENS),
        "context_weights": _pad(is_context.astype(np.float32), record_length - SPECIAL_TOKENS),
    }


def _pad(row: np.ndarray, length: int) -> np.ndarray:
    return np.pad(row, (0, length - len(row)))
