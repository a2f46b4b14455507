"""Schema of pre-training records: features named as in google-research/bert, so that its trainers read our files.

The meaning of `next_sentence_labels` depends on the objective, which is in the manifest of the records: `mlm_nsp`, 1 if
B is random; `mlm_sop`, 1 if A and B are swapped; `mlm` has one text and no such label: always 0, and never read.

Source: google-research/bert, create_pretraining_data.py, `write_instance_to_example_files`.
"""

from collections.abc import Mapping

import numpy as np

from keras_bert_flow.records.batches import encode_examples
from keras_bert_flow.records.example import decode_example

FEATURE_KINDS = {  # NumPy's kind of each type
    "input_ids": "i",  # (sequence_length,)
    "input_mask": "i",  # (sequence_length,), 1 for a token, 0 for padding
    "segment_ids": "i",  # (sequence_length,)
    "masked_lm_positions": "i",  # (max_predictions,)
    "masked_lm_ids": "i",  # (max_predictions,)
    "masked_lm_weights": "f",  # (max_predictions,), 1.0 for a prediction, 0.0 for filler
    "next_sentence_labels": "i",  # (1,), 0 where B follows A, 1 where it does not
}


def encode_records(
    *,
    token_ids: np.ndarray,
    segment_ids: np.ndarray,
    lengths: np.ndarray,
    mask_positions: np.ndarray,
    mask_ids: np.ndarray,
    mask_counts: np.ndarray,
    sentence_labels: np.ndarray,
) -> list[bytes]:
    """Serialise masked instances, one or more.

    Args:
        token_ids: int, (records, sequence_length), with some tokens replaced, padded with zeros.
        segment_ids: int, (records, sequence_length), padded with zeros.
        lengths: int, (records,). Tokens of each.
        mask_positions: int, (records, max_predictions), padded with zeros.
        mask_ids: int, (records, max_predictions), padded with zeros.
        mask_counts: int, (records,). Predictions of each.
        sentence_labels: bool, (records,).
    """
    input_mask = np.arange(token_ids.shape[1]) < lengths[:, None]
    weights = np.arange(mask_ids.shape[1]) < mask_counts[:, None]
    return encode_examples(
        {
            "input_ids": token_ids,
            "input_mask": input_mask.astype(np.uint8),
            "segment_ids": segment_ids,
            "masked_lm_positions": mask_positions,
            "masked_lm_ids": mask_ids,
            "masked_lm_weights": weights.astype(np.float32),
            "next_sentence_labels": sentence_labels[:, None].astype(np.uint8),
        }
    )


def decode_record(record: bytes) -> Mapping[str, np.ndarray]:
    """Decode the features of a record by name, those of FEATURE_KINDS, padding included.

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
