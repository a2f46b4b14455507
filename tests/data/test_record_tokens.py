"""Tokens of records as they were before masking, their counts, and what each counts as a label of a bag of words."""

from collections import Counter

import numpy as np
import pytest

from keras_bert_flow.data import pretraining_records
from keras_bert_flow.data.pretraining import pretraining_dataset
from keras_bert_flow.data.pretraining_records import PretrainingRecords, count_tokens, read_tokens, weigh_tokens
from tests.oracles.tiny_records import write_tiny_records

pytestmark = pytest.mark.any_backend
LENGTH = 16


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    return PretrainingRecords(write_tiny_records(tmp_path_factory.mktemp("record_tokens") / "records", train=(40, 60)))


def count_words(records):
    """Count the words of every record, those that are masked included, one by one."""
    counts = Counter()
    for record in records:
        is_masked = record["masked_lm_weights"] > 0
        tokens = record["input_ids"].tolist()
        for position, word in zip(
            record["masked_lm_positions"][is_masked], record["masked_lm_ids"][is_masked], strict=True
        ):
            tokens[position] = int(word)
        counts.update(word for word in tokens if word > 4)  # special pieces come first
    return counts


def test_some_of_many_records_are_read(records, monkeypatch):
    every = np.concatenate(list(read_tokens(records, LENGTH)))
    monkeypatch.setattr(pretraining_records, "MOST_TOKENS", LENGTH * 20)
    monkeypatch.setattr(pretraining_records, "BATCH_TOKENS", LENGTH * 3)
    np.testing.assert_array_equal(np.concatenate(list(read_tokens(records, LENGTH))), every[::5])


def test_counts_are_those_of_the_text(records):
    counts = count_tokens(read_tokens(records, LENGTH), 50, range(5))
    assert {word: count for word, count in enumerate(counts) if count} == count_words(records)


def test_frequent_tokens_weigh_less_by_the_root_of_their_share():
    weights = weigh_tokens(np.array([0, 1, 100, 400, 999_499]))
    # Shares of 10^-4 and 4 * 10^-4 of 10^6, and nearly 1; none and one in a million weigh 1.
    np.testing.assert_allclose(weights, [1, 1, 1, 0.5, 0.01], rtol=1e-3)
    np.testing.assert_array_equal(weigh_tokens(np.zeros(3, int)), [1, 1, 1])


def test_dataset_weighs_masked_tokens_by_their_share(records):
    _, y, weights = next(iter(pretraining_dataset(records, 8, bag_of_words=True)))
    np.testing.assert_array_equal(y["words"], y["mlm"])
    counts = count_words(records)
    shares = np.array([[counts[label] / counts.total() for label in row] for row in y["mlm"].tolist()])
    expected = weights["mlm"] * np.sqrt(1e-4 / np.maximum(shares, 1e-4))
    np.testing.assert_allclose(weights["words"], expected, rtol=1e-6)
    assert 0 < weights["words"][weights["mlm"] > 0].max() < 0.2  # none of 45 words is rare
