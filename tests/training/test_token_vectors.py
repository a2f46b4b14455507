"""Token vectors from co-occurrence against counting by hand and a dense decomposition by NumPy."""

import numpy as np
import pytest

from keras_bert_flow.training.pretraining import pretrainers
from keras_bert_flow.training.pretraining.pretrainers import (
    count_neighbours,
    count_together,
    find_token_vectors,
    make_token_vectors,
)

pytestmark = pytest.mark.any_backend

TOKENS, SPECIAL = 40, (0, 1)


@pytest.fixture(scope="module")
def rows():
    # Half of the ids are frequent, and 38 and 39 never occur.
    rng = np.random.default_rng(0)
    return rng.integers(0, np.where(rng.random((60, 12)) < 0.5, 12, TOKENS - 2))


def count_plainly(rows):
    counts = np.zeros((TOKENS, TOKENS))
    for row in rows:
        for place, token in enumerate(row):
            for other_place, other in enumerate(row):
                distance = abs(place - other_place)
                if 0 < distance <= 5 and token not in SPECIAL and other not in SPECIAL:
                    counts[token, other] += 1 / distance
    return counts


def test_neighbours_are_counted_by_their_distance(rows):
    found = count_neighbours([rows[:17], rows[17:]], TOKENS, np.array(SPECIAL))
    np.testing.assert_allclose(found.toarray(), count_plainly(rows), rtol=1e-12)


def test_short_rows_are_counted():
    found = count_neighbours([np.array([[2, 3]])], TOKENS, np.array(SPECIAL)).toarray()
    assert found[2, 3] == found[3, 2] == 1 and found.sum() == 2


def test_tokens_of_a_passage_are_counted_once(rows, monkeypatch):
    monkeypatch.setattr(pretrainers, "PASSAGE_TOKENS", 5)  # of 12: the last one is shorter
    expected = np.zeros((TOKENS, TOKENS))
    for row in rows:
        for start in (0, 5, 10):
            tokens = sorted({*row[start : start + 5].tolist()} - {*SPECIAL})
            for token in tokens:
                expected[token, [other for other in tokens if other != token]] += 1
    found = count_together([rows[:17], rows[17:]], TOKENS, np.array(SPECIAL))
    np.testing.assert_array_equal(found.toarray(), expected)


def decompose_plainly(counts, width):
    totals = counts.sum(axis=0)
    contexts = totals**0.75 / (totals**0.75).sum()
    with np.errstate(divide="ignore"):
        information = np.maximum(np.log(counts / totals[:, None] / contexts), 0)
    left, values, _ = np.linalg.svd(information)
    vectors = left[:, :width] * np.sqrt(values[:width])
    return vectors - vectors.mean(axis=0)


def test_vectors_are_those_of_a_dense_decomposition(rows):
    width = 7
    vectors, token_ids = find_token_vectors(count_neighbours([rows], TOKENS, np.array(SPECIAL)), width)
    assert token_ids.tolist() == list(range(2, TOKENS - 2))
    expected = decompose_plainly(count_plainly(rows)[2:-2, 2:-2], width)
    np.testing.assert_allclose(vectors @ vectors.T, expected @ expected.T, atol=1e-8)  # whatever the signs


def test_near_neighbours_and_passages_give_half_of_the_columns_each(rows):
    width = 7
    vectors, token_ids = make_token_vectors([rows], TOKENS, np.array(SPECIAL), width, seed=1)
    assert token_ids.tolist() == list(range(2, TOKENS - 2))
    assert vectors.dtype == np.float32 and np.mean(vectors**2) == pytest.approx(1, rel=1e-5)
    together = count_together([rows], TOKENS, np.array(SPECIAL)).toarray()[2:-2, 2:-2]
    halves = decompose_plainly(count_plainly(rows)[2:-2, 2:-2], 4), decompose_plainly(together, 3)
    expected = np.concatenate([half / np.linalg.norm(half, axis=1, keepdims=True) for half in halves], axis=1)
    expected /= np.sqrt(np.mean(expected**2))
    np.testing.assert_allclose(vectors @ vectors.T, expected @ expected.T, atol=1e-4)  # whatever the rotation
    assert np.abs(vectors - expected).max() > 0.1


def test_seed_turns_the_vectors(rows):
    first, again, other = (make_token_vectors([rows], TOKENS, np.array(SPECIAL), 7, seed)[0] for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 0.1


def test_text_of_few_tokens_is_refused(rows):
    with pytest.raises(ValueError, match=r"Received: 36 tokens, hidden_dim=36. Give more text, or token_embeddings: r"):
        make_token_vectors([rows], TOKENS, np.array(SPECIAL), 36, seed=1)
    with pytest.raises(ValueError, match="Received: 36 tokens for 40 columns"):
        make_token_vectors([rows], TOKENS, np.array(SPECIAL), 80, seed=1)


def test_signs_of_columns_are_not_those_that_a_processor_happens_to_give(rows, monkeypatch):
    counts = count_neighbours([rows], TOKENS, np.array(SPECIAL))
    (expected, _), plain = find_token_vectors(counts, 4), pretrainers.svds

    def turn(*arguments, **options):
        left, values, right = plain(*arguments, **options)
        return left * [1, -1, -1, 1], values, right

    monkeypatch.setattr(pretrainers, "svds", turn)
    np.testing.assert_allclose(find_token_vectors(counts, 4)[0], expected)
