"""Token vectors from co-occurrence against counting by hand and a dense decomposition by NumPy."""

import numpy as np
import pytest

from keras_bert_flow.training.token_vectors import count_neighbours, find_token_vectors

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


def test_vectors_are_those_of_a_dense_decomposition(rows):
    width = 7
    vectors, token_ids = find_token_vectors(count_neighbours([rows], TOKENS, np.array(SPECIAL)), width, seed=1)
    assert token_ids.tolist() == list(range(2, TOKENS - 2))
    counts = count_plainly(rows)[2:-2, 2:-2]
    totals = counts.sum(axis=0)
    contexts = totals**0.75 / (totals**0.75).sum()
    with np.errstate(divide="ignore"):
        information = np.maximum(np.log(counts / totals[:, None] / contexts), 0)
    left, values, _ = np.linalg.svd(information)
    expected = left[:, :width] * np.sqrt(values[:width])
    expected -= expected.mean(axis=0)
    expected /= expected.std()
    assert vectors.dtype == np.float32 and vectors.std() == pytest.approx(1, rel=1e-5)
    np.testing.assert_allclose(vectors @ vectors.T, expected @ expected.T, atol=1e-4)  # whatever the rotation
    spread = vectors.std(axis=0)
    assert spread.max() < 2 * spread.min()  # no column holds most of it
    assert expected.std(axis=0).max() > 2 * expected.std(axis=0).min()


def test_seed_turns_the_vectors(rows):
    counts = count_neighbours([rows], TOKENS, np.array(SPECIAL))
    (first, _), (again, _), (other, _) = (find_token_vectors(counts, 7, seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 0.1


def test_text_of_few_tokens_is_refused(rows):
    counts = count_neighbours([rows], TOKENS, np.array(SPECIAL))
    with pytest.raises(ValueError, match=r"Received: 36 tokens, hidden_dim=36. Give more text, or token_embeddings: r"):
        find_token_vectors(counts, 36, seed=1)
