"""Name the features of a pre-training record as google-research/bert does, so that its trainers read our files.

Source: google-research/bert, create_pretraining_data.py, `write_instance_to_example_files`.
"""

from dataclasses import dataclass

import numpy as np

from keras_bert_flow.records.example import decode_example, encode_example


@dataclass(frozen=True)
class PretrainingInstance:
    """A masked pair of segments, without padding.

    Attributes:
        token_ids: int, (length,). [CLS] A [SEP] B [SEP], with some tokens replaced.
        segment_ids: int, (length,). 0 for [CLS] A [SEP], 1 for B [SEP].
        mask_positions: int, (predictions,), ascending. Places of the masked tokens.
        mask_ids: int, (predictions,). The original tokens there.
        is_random_next: B is from another document: label 1, as in google-research/bert.
    """

    token_ids: np.ndarray
    segment_ids: np.ndarray
    mask_positions: np.ndarray
    mask_ids: np.ndarray
    is_random_next: bool


def encode_instance(instance: PretrainingInstance, sequence_length: int, max_predictions: int) -> bytes:
    """Pad an instance with zeros to the given lengths and serialise it as a `tf.train.Example`."""
    length, predictions = len(instance.token_ids), len(instance.mask_ids)
    return encode_example(
        {
            "input_ids": _pad(instance.token_ids, sequence_length),
            "input_mask": _pad(np.ones(length, np.int64), sequence_length),
            "segment_ids": _pad(instance.segment_ids, sequence_length),
            "masked_lm_positions": _pad(instance.mask_positions, max_predictions),
            "masked_lm_ids": _pad(instance.mask_ids, max_predictions),
            "masked_lm_weights": _pad(np.ones(predictions, np.float32), max_predictions),
            "next_sentence_labels": np.array([instance.is_random_next], np.int64),
        }
    )


def decode_instance(record: bytes) -> PretrainingInstance:
    """Read a record back, without its padding.

    Raises:
        ValueError: a feature is missing or has another type; the message names it.
    """
    features = decode_example(record)
    for name, kind in FEATURE_KINDS.items():
        if name not in features or features[name].dtype.kind != kind:
            raise ValueError(f"A record must hold the feature `{name}`. Received: {sorted(features)}. Rebuild the records.")
    length = int(features["input_mask"].sum())
    predictions = int(features["masked_lm_weights"].sum())
    return PretrainingInstance(
        token_ids=features["input_ids"][:length],
        segment_ids=features["segment_ids"][:length],
        mask_positions=features["masked_lm_positions"][:predictions],
        mask_ids=features["masked_lm_ids"][:predictions],
        is_random_next=bool(features["next_sentence_labels"][0]),
    )


FEATURE_KINDS = {
    "input_ids": "i",
    "input_mask": "i",
    "segment_ids": "i",
    "masked_lm_positions": "i",
    "masked_lm_ids": "i",
    "masked_lm_weights": "f",
    "next_sentence_labels": "i",
}


def _pad(values: np.ndarray, length: int) -> np.ndarray:
    return np.pad(values, (0, length - len(values)))
