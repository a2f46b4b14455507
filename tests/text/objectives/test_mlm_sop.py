import numpy as np
import pytest
from scipy import stats

from keras_bert_flow.text.objectives.mlm_sop import SentenceOrder
from tests.text.objectives.test_mlm_nsp import cut_pairs, make_pool


def make_sentences(lengths):
    """Return sentences in which every token is its place in the document."""
    borders = np.cumsum([0, *lengths])
    return [np.arange(start, end) for start, end in zip(borders[:-1], borders[1:], strict=True)]


def build(sentences, sequence_length=64, short_fraction=0.1, seed=0):
    rng, pool = np.random.default_rng(seed), make_pool([sentences])
    return cut_pairs(
        pool, SentenceOrder().draw_pairs(pool, 0, sequence_length, short_fraction, rng), sequence_length, rng
    )


def random_sentences(seed, shortest=2):
    rng = np.random.default_rng(seed)
    return make_sentences(rng.geometric(0.06, rng.integers(shortest, 25)).clip(1, 200))


def in_order(pair):
    return (pair.second, pair.first) if pair.is_random_next else (pair.first, pair.second)


@pytest.mark.parametrize(("sequence_length", "short_fraction"), [(8, 0.1), (64, 0), (64, 1), (512, 0.1)])
def test_ordered_pairs_are_neighbours_and_labelled_by_their_order(sequence_length, short_fraction):
    for seed in range(150):
        last = -1
        pairs = build(random_sentences(seed), sequence_length, short_fraction, seed)
        assert pairs
        for pair in pairs:
            assert len(pair.first) and len(pair.second)
            assert len(pair.first) + len(pair.second) <= sequence_length - 3
            for segment in in_order(pair):
                assert np.all(np.diff(segment) == 1)
                assert segment[0] > last
                last = segment[-1]


def test_ordered_pairs_meet_at_the_end_of_a_sentence():
    for seed in range(150):
        sentences = make_sentences([3] * 40)
        for pair in build(sentences, 64, 0, seed):  # 61 tokens: chunks of 21 sentences, 63 tokens, two cut away
            before, after = in_order(pair)
            assert after[0] - before[-1] <= 3  # nothing between them but what truncation took


def test_ordered_pairs_lose_no_sentence():
    for seed in range(100):
        sentences = make_sentences([1] * 40)  # of one token, so nothing is truncated
        pairs = build(sentences, 16, 0.5, seed)
        found = np.concatenate([segment for pair in pairs for segment in in_order(pair)])
        if len(found) < 40:  # a sentence that would be left alone is one too many for the last chunk
            assert len(pairs[-1].first) + len(pairs[-1].second) == 13
            assert len(found) == 39
        else:
            assert found.tolist() == list(range(40))


def test_half_of_the_ordered_pairs_are_swapped():
    labels = [pair.is_random_next for seed in range(400) for pair in build(random_sentences(seed), seed=1000 + seed)]
    assert len(labels) > 1000
    assert stats.chisquare(np.bincount(labels, minlength=2)).pvalue > 0.001


def test_document_of_one_sentence_gives_no_ordered_pair():
    assert build(make_sentences([50])) == build([]) == []
    assert len(build(make_sentences([50, 1]))) == 1
