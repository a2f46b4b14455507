"""Partners are ranked among all second texts that can be wrong, each of them once; against a loop over all pairs."""

import numpy as np
import pytest

from keras_bert_flow.tasks import sentence_embedding
from keras_bert_flow.tasks.core.task import Features
from keras_bert_flow.tasks.core.texts import TextExample
from keras_bert_flow.tasks.sentence_embedding import (
    BELONG,
    SentenceEmbedding,
    pair_cosines,
    rank_partners,
)
from tests.oracles.pair_losses import contrastive_loss, cosines
from tests.tasks.kinds import TOKENIZER

RNG = np.random.default_rng(8)
TEXTS = RNG.normal(size=(30, 5))  # so few that many pairs share one


def draw(pairs, texts):
    numbers = RNG.integers(texts, size=(pairs, 2))
    return TEXTS[numbers], numbers


def rank_by_loops(vectors, numbers):
    units = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    first_places = {}
    for place, second in enumerate(numbers[:, 1].tolist()):
        first_places.setdefault(second, place)
    for first, second in numbers.tolist():
        known = {first} | {other[1] for other in numbers.tolist() if other[0] in (first, second)}
        wrong = [text for text in first_places if text not in known or text == second]
        query = units[[f == first and s == second for f, s in numbers.tolist()]][0, 0]
        order = sorted(wrong, key=lambda text: (-round(query @ units[first_places[text], 1], 12), first_places[text]))
        yield order.index(second) + 1, first_places[order[0]]


@pytest.mark.parametrize(("pairs", "texts"), [(8, 30), (40, 30), (40, 6), (1, 30)])
@pytest.mark.parametrize("at_once", [1, 7, 512])
def test_ranks_are_those_of_sorting(monkeypatch, pairs, texts, at_once):
    monkeypatch.setattr(sentence_embedding, "ROWS_AT_ONCE", at_once)
    vectors, numbers = draw(pairs, texts)
    found = rank_partners(vectors, numbers)
    expected = list(rank_by_loops(vectors, numbers))
    assert list(zip(found.ranks.tolist(), found.nearest.tolist(), strict=True)) == expected
    np.testing.assert_allclose(found.cosines, cosines(vectors), atol=1e-12)
    np.testing.assert_allclose(pair_cosines(vectors), cosines(vectors), atol=1e-12)
    assert (found.nearest_cosines >= found.cosines).all()
    assert ((found.nearest_cosines == found.cosines) | (found.ranks > 1)).all()


def test_known_ranks():
    angles = np.radians([[0, 10], [90, 5], [180, 100]])
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    different = np.arange(6).reshape(3, 2)
    assert rank_partners(vectors, different).ranks.tolist() == [2, 3, 1]
    assert rank_partners(vectors, different).nearest.tolist() == [1, 2, 2]
    # Pair 1 has the first text of pair 0, so neither second text is wrong for the other.
    assert rank_partners(vectors, np.array([[0, 1], [0, 3], [4, 5]])).ranks.tolist() == [1, 2, 1]
    # The second text of pair 1 is the first one of pair 0.
    assert rank_partners(vectors, np.array([[0, 1], [2, 0], [4, 5]])).ranks.tolist() == [1, 2, 1]


def test_equals_are_ranked_by_their_place():
    found = rank_partners(np.ones((4, 2, 3)), np.arange(8).reshape(4, 2))
    assert found.ranks.tolist() == [1, 2, 3, 4] and set(found.nearest) == {0}


def test_loss_among_all_is_that_of_one_batch():
    vectors = RNG.normal(size=(9, 2, 4))
    numbers = np.arange(18).reshape(9, 2)
    ids = [np.array([place], np.int32) for place in range(18)]
    features = Features(ids, np.ones(18), np.arange(9), {"logits": numbers}, sequences_per_row=2)
    task = SentenceEmbedding(scale=5.0)
    expected = contrastive_loss(vectors, numbers, scale=5.0)
    assert task.measure_loss({"logits": vectors}, features) == pytest.approx(expected)
    numbers[3, 0] = numbers[6, 0]
    expected = contrastive_loss(vectors, numbers, scale=5.0)
    assert task.measure_loss({"logits": vectors}, features) == pytest.approx(expected)


def test_texts_are_numbered_by_what_they_are():
    examples = [TextExample(*texts, BELONG) for texts in (("b", "a"), ("b", ""), ("a", "c"))]
    features = SentenceEmbedding().encode(TOKENIZER, examples, 8)
    assert features.labels["logits"].tolist() == [[0, 1], [0, 2], [1, 3]]
