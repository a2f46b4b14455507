"""Name the features of a pre-training record as google-research/bert does, so that its trainers read our files.

What `next_sentence_labels` means depends on the objective, which the manifest of the records names: `mlm_nsp`, 1 where
B is random; `mlm_sop`, 1 where A and B are swapped; `mlm` has one text and no such label: always 0, and never read.

Source: google-research/bert, create_pretraining_data.py, `write_instance_to_example_files`.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from keras_bert_flow.records.batches import encode_examples
from keras_bert_flow.records.example import decode_example, encode_example

FEATURE_KINDS = {  # numpy's letter for each type
    "input_ids": "i",  # (sequence_length,)
    "input_mask": "i",  # (sequence_length,), 1 for a token, 0 for padding
    "segment_ids": "i",  # (sequence_length,)
    "masked_lm_positions": "i",  # (max_predictions,)
    "masked_lm_ids": "i",  # (max_predictions,)
    "masked_lm_weights": "f",  # (max_predictions,), 1.0 for a prediction, 0.0 for filler
    "next_sentence_labels": "i",  # (1,), 0 where B follows A, 1 where it does not
}


def encode_record(
    *,
    token_ids: np.ndarray,
    segment_ids: np.ndarray,
    mask_positions: np.ndarray,
    mask_ids: np.ndarray,
    is_random_next: bool,
    sequence_length: int,
    max_predictions: int,
) -> bytes:
    """Pad a masked instance with zeros to the given lengths and serialise it.

    Args:
        token_ids: int, (length,). [CLS] A [SEP] B [SEP], or [CLS] text [SEP], with some tokens replaced.
        segment_ids: int, (length,). 0 for [CLS] A [SEP], 1 for B [SEP].
        mask_positions: int, (predictions,). Places of the masked tokens.
        mask_ids: int, (predictions,). The original tokens there.
        is_random_next: B is from another document, or, for `mlm_sop`, swapped with A.
        sequence_length: tokens of a record, at least `length`.
        max_predictions: predictions of a record, at least `predictions`.
    """
    return encode_example(
        {
            "input_ids": _pad(token_ids, sequence_length),
            "input_mask": _pad(np.ones(len(token_ids), np.int64), sequence_length),
            "segment_ids": _pad(segment_ids, sequence_length),
            "masked_lm_positions": _pad(mask_positions, max_predictions),
            "masked_lm_ids": _pad(mask_ids, max_predictions),
            "masked_lm_weights": _pad(np.ones(len(mask_ids), np.float32), max_predictions),
            "next_sentence_labels": np.array([is_random_next], np.int64),
        }
    )


def encode_records(
    *,
    token_ids: Sequence[np.ndarray],
    segment_ids: Sequence[np.ndarray],
    mask_positions: Sequence[np.ndarray],
    mask_ids: Sequence[np.ndarray],
    is_random_next: Sequence[bool],
    sequence_length: int,
    max_predictions: int,
) -> list[bytes]:
    """Pad and serialise many masked instances, one or more; the bytes are those of `encode_record`, at less cost.

    Args: as those of `encode_record`, one of each for every instance.
    """
    masks = [np.ones(len(ids), np.float32) for ids in mask_ids]
    return encode_examples(
        {
            "input_ids": _pad_rows(token_ids, sequence_length, np.int64),
            "input_mask": _pad_rows([np.ones(len(ids), np.uint8) for ids in token_ids], sequence_length, np.uint8),
            "segment_ids": _pad_rows(segment_ids, sequence_length, np.uint8),
            "masked_lm_positions": _pad_rows(mask_positions, max_predictions, np.int64),
            "masked_lm_ids": _pad_rows(mask_ids, max_predictions, np.int64),
            "masked_lm_weights": _pad_rows(masks, max_predictions, np.float32),
            "next_sentence_labels": np.array(is_random_next, np.uint8)[:, None],
        }
    )


def decode_record(record: bytes) -> Mapping[str, np.ndarray]:
    """Read the features of a record, those of FEATURE_KINDS by name, padding included.

    Raises:
        ValueError: a feature is missing or has another type; the message names it.
    """
    features = decode_example(record)
    for name, kind in FEATURE_KINDS.items():
        if name not in features or features[name].dtype.kind != kind:
            raise ValueError(
                f"A record must hold the feature `{name}`. Received: {sorted(features)}. Rebuild the records."
            )
    return features


def _pad(values: np.ndarray, length: int) -> np.ndarray:
    padded = np.zeros(length, values.dtype)  # several times faster than numpy.pad
    padded[: len(values)] = values
    return padded


def _pad_rows(rows: Sequence[np.ndarray], length: int, dtype: type) -> np.ndarray:
    padded = np.zeros((len(rows), length), dtype)
    for place, row in enumerate(rows):
        padded[place, : len(row)] = row
    return padded
