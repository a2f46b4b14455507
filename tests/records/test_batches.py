"""Batches against protobuf, one record after another."""

import numpy as np
import pytest

from keras_bert_flow.records.example import encode_examples, encode_records
from tests.oracles.examples import encode_example


def one_by_one(features):
    rows = len(next(iter(features.values())))
    return [encode_example({name: values[row] for name, values in features.items()}) for row in range(rows)]


@pytest.mark.parametrize("highest", [1, 127, 128, 16383, 16384, 2**21, 2**40, 2**63 - 1])
@pytest.mark.parametrize("width", [1, 3, 60, 130, 20_000])
def test_batch_has_the_bytes_of_protobuf(highest, width):
    rng = np.random.default_rng([highest, width])
    mixed = rng.integers(0, highest, (4, width), endpoint=True) >> rng.integers(0, 60, (4, width))
    features = {"b": mixed, "é": rng.random((4, width), np.float32), "a": mixed[:, :1], "c" * 200: mixed * 0}
    assert encode_examples(features) == one_by_one(features)


def test_batch_refuses_negative_integers():
    with pytest.raises(ValueError, match="must not be negative. Received: -1"):
        encode_examples({"x": np.array([[1, -1]])})


def pad(values, length):
    return np.pad(values, (0, length - len(values)))


@pytest.mark.parametrize(("sequence_length", "max_predictions"), [(16, 2), (128, 20), (512, 76)])
def test_records_of_a_batch_are_padded_and_have_the_bytes_of_protobuf(sequence_length, max_predictions):
    rng, rows, expected = np.random.default_rng(0), [], []
    for length in [5, sequence_length, *rng.integers(5, sequence_length, 30, endpoint=True)]:
        masks = rng.integers(0, min(length, max_predictions), endpoint=True)
        row = {
            "token_ids": pad(rng.integers(0, 30522, length), sequence_length),
            "segment_ids": pad(np.repeat([0, 1], [3, length - 3]), sequence_length),
            "mask_positions": pad(np.sort(rng.choice(length, masks, replace=False)), max_predictions),
            "mask_ids": pad(rng.integers(0, 30522, masks), max_predictions),
            "sentence_labels": rng.integers(2) > 0,
        }
        rows.append(row | {"lengths": length, "mask_counts": masks})
        features = {
            "input_ids": row["token_ids"],
            "input_mask": pad(np.ones(length, int), sequence_length),
            "segment_ids": row["segment_ids"],
            "masked_lm_positions": row["mask_positions"],
            "masked_lm_ids": row["mask_ids"],
            "masked_lm_weights": pad(np.ones(masks, np.float32), max_predictions),
            "next_sentence_labels": np.array([row["sentence_labels"]], int),
        }
        expected.append(encode_example(features))
    batch = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    assert encode_records(**batch) == expected
