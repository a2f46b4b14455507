"""An exact search finds what comparing all in float64 finds, for any size of the pieces, equals in their order."""

import numpy as np
import pytest

from keras_bert_flow.prediction import search
from keras_bert_flow.prediction.search import find_nearest, unit_length

RNG = np.random.default_rng(6)
# Few different vectors, so that many rows are the same; and near ones, which float32 products can only just tell apart.
FEW = RNG.normal(size=(12, 48))[RNG.integers(12, size=300)]
NEAR = RNG.normal(size=48) + 1e-4 * RNG.normal(size=(300, 48))
FAR = RNG.normal(size=(300, 48))


def compare_all(queries, vectors, top):
    """Sort all cosines in float64; as `util.semantic_search` of `sentence_transformers`, but for ties."""
    queries, vectors = queries.astype(np.float64), vectors.astype(np.float64)
    places, found = [], []
    for query in queries:
        lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(query)
        cosines = [sum(row * query) / length if length else 0.0 for row, length in zip(vectors, lengths, strict=True)]
        order = sorted(range(len(vectors)), key=lambda place: (-cosines[place], place))[:top]
        places.append(order)
        found.append([cosines[place] for place in order])
    return np.array(places), np.array(found)


@pytest.mark.parametrize("rows", [FAR, NEAR, FEW], ids=["far", "near", "few"])
@pytest.mark.parametrize("top", [1, 7, 300, 400])
def test_search_finds_what_comparing_all_finds(rows, top, monkeypatch):
    vectors = unit_length(rows)
    queries = np.concatenate([unit_length(RNG.normal(size=(2, 48))), vectors[100:101]])
    places, cosines = compare_all(queries, vectors, top)
    for rows_at_once in (1, 17, 300, 1000):
        monkeypatch.setattr(search, "ROWS_AT_ONCE", rows_at_once)
        found = find_nearest(queries, vectors, top)
        np.testing.assert_array_equal(found[0], places)
        np.testing.assert_allclose(found[1], cosines, atol=1e-14)


def test_equals_come_in_their_order(monkeypatch):
    vectors = unit_length(np.tile(RNG.normal(size=64), (1000, 1)))
    for rows_at_once in (7, 64, 1000):
        monkeypatch.setattr(search, "ROWS_AT_ONCE", rows_at_once)
        assert find_nearest(vectors[:1], vectors, 5)[0].tolist() == [[0, 1, 2, 3, 4]]


def test_nothing_is_near_to_nothing():
    vectors = unit_length(np.array([[0.0, 0.0], [3.0, 4.0], [-3.0, -4.0]]))
    assert vectors.tolist() == [[0, 0], [np.float32(0.6), np.float32(0.8)], [-np.float32(0.6), -np.float32(0.8)]]
    places, cosines = find_nearest(vectors, vectors, 3)
    assert places.tolist() == [[0, 1, 2], [1, 0, 2], [2, 0, 1]]
    assert cosines.tolist() == [[0, 0, 0], [1, 0, -1], [1, 0, -1]]


def test_many_queries_are_searched_in_blocks():
    vectors = unit_length(FAR)
    places, cosines = find_nearest(np.tile(vectors, (2, 1)), vectors, 1)
    assert places[:, 0].tolist() == [*range(300)] * 2
    np.testing.assert_allclose(cosines, 1, atol=1e-14)
    assert find_nearest(vectors[:0], vectors, 3)[0].shape == (0, 3)


def test_no_hit_cannot_be_asked_for():
    with pytest.raises(ValueError, match="`top` must be at least 1. Received: 0"):
        find_nearest(FAR[:1], FAR, 0)
