"""Restore the tokens of pre-training records, count them, and weight them as labels."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from keras_bert_flow.data.dynamic_masking import RandomAccess, restore_tokens

MOST_TOKENS = 16_000_000  # more tokens change little, and would take more than seconds
BATCH_TOKENS = 1 << 21
# Tokens above this share of the text count less: word2vec's threshold for 10^9 words is 1e-5, for small corpora 1e-3.
FREQUENT = 1e-4


def read_tokens(records: RandomAccess, length: int) -> Iterator[np.ndarray]:
    """Yield batches of the records' tokens before masking, int, (sequences, length).

    If there are more than `MOST_TOKENS` tokens, evenly spaced records are read.
    """
    step = max(1, -(-len(records) * length // MOST_TOKENS))
    numbers = range(0, len(records), step)
    size = max(1, BATCH_TOKENS // length)
    for start in range(0, len(numbers), size):
        yield np.stack([restore_tokens(records[number]) for number in numbers[start : start + size]])


def count_tokens(
    batches: Iterable[np.ndarray], vocabulary_size: int, special_ids: Sequence[int] | np.ndarray
) -> np.ndarray:
    """Return the frequency of each token, int, (vocabulary,); special pieces are not counted."""
    counts = sum(
        (np.bincount(rows.ravel(), minlength=vocabulary_size) for rows in batches), np.zeros(vocabulary_size, "int64")
    )
    counts[list(special_ids)] = 0
    return counts


def weigh_tokens(counts: np.ndarray) -> np.ndarray:
    """Return label weights that down-weight frequent tokens, float32, (vocabulary,).

    A weight is sqrt(`FREQUENT` / share of the text), at most 1: the probability with which word2vec keeps a word.

    Source: Mikolov et al. 2013, section 2.3; arXiv:1310.4546.
    """
    shares = counts / max(1, counts.sum())
    return np.sqrt(FREQUENT / np.maximum(shares, FREQUENT)).astype("float32")
