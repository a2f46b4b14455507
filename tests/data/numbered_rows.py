"""Rows of features that can be told from each other in any batch."""

import numpy as np

from keras_bert_flow.tasks.core.task import Features

LENGTHS = np.random.default_rng(3).integers(3, 40, 45)


def make_features(lengths=LENGTHS, sequences_per_row=1, labels=None):
    """Rows whose sequences begin with their own number."""
    token_ids = [np.full(length, 7, np.int32) for length in lengths]
    for number, sequence in enumerate(token_ids):
        sequence[0] = number
    rows = len(lengths) // sequences_per_row
    labels = {"logits": np.arange(rows, dtype=np.int32) * 10} if labels is None else labels
    return Features(token_ids, np.asarray(lengths) - 1, np.arange(rows, dtype=np.int32), labels, sequences_per_row)
