import os
import random
from collections import Counter, namedtuple
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from keras_bert_flow.text.corpus.documents import ReadingRule, read_documents
from keras_bert_flow.text.objectives.mlm_nsp import MISTAKEN, NextSentence, truncate_pairs
from keras_bert_flow.text.rows import Pool, TokenizedDocument, join_pairs
from tests.oracles import google_pairs

DATA = os.environ.get("KBF_TEST_DATA")
needs_data = pytest.mark.skipif(not DATA, reason="KBF_TEST_DATA is not set")
SegmentPair = namedtuple("SegmentPair", "first second is_random_next")
SENTENCE = 1000  # token = document * 1,000,000 + sentence * 1000 + place: each token says where it is from


def make_corpus(sentence_lengths):
    """Return documents of the given sentence lengths whose tokens say where they are from."""
    return [
        [np.arange(length) + (number * SENTENCE + sentence) * SENTENCE for sentence, length in enumerate(lengths)]
        for number, lengths in enumerate(sentence_lengths)
    ]


def synthetic_corpus(documents=40, seed=0):
    rng = np.random.default_rng(seed)
    return make_corpus([rng.geometric(0.06, rng.integers(1, 25)).clip(1, 200) for _ in range(documents)])


def make_pool(corpus):
    lengths = [np.array([len(sentence) for sentence in document], int) for document in corpus]
    texts = [np.concatenate([*document, np.array([], int)]) for document in corpus]
    return Pool.of([TokenizedDocument(str(n), *parts) for n, parts in enumerate(zip(texts, lengths, strict=True))])


def cut_pairs(pool, pairs, sequence_length, rng):
    """Truncate pairs and return their tokens."""
    table = np.array([*pairs], int).reshape(-1, 5)
    cut = truncate_pairs(table[:, :4], sequence_length - 3, rng)
    return [
        SegmentPair(pool.token_ids[a : a + length], pool.token_ids[b : b + more], bool(is_random_next))
        for (a, length, b, more), is_random_next in zip(cut, table[:, 4], strict=True)
    ]


def build(corpus, number, sequence_length=64, short_fraction=0.1, seed=0):
    rng, pool = np.random.default_rng([seed, number]), make_pool(corpus)
    return cut_pairs(
        pool, NextSentence().draw_pairs(pool, number, sequence_length, short_fraction, rng), sequence_length, rng
    )


def truncate_pair(first, second, longest, rng):
    (cut,) = truncate_pairs(np.array([[0, len(first), 0, len(second)]]), longest, rng)
    return first[cut[0] : cut[0] + cut[1]], second[cut[2] : cut[2] + cut[3]]


def all_pairs(corpus, sequence_length=64, short_fraction=0.1, seeds=3):
    for number in range(len(corpus)):
        for seed in range(seeds):
            yield number, build(corpus, number, sequence_length, short_fraction, seed)


def test_random_segment_that_could_follow_is_told_by_its_first_sentence():
    shared = [np.array([number]) for number in range(1, 7)]
    pool = make_pool([[*shared, np.array([7])], [*shared, np.array([8])]])
    told = {True: 0, False: 0}
    for seed in range(200):
        for place, length, second, _, label in NextSentence().draw_pairs(pool, 0, 8, 0.0, np.random.default_rng(seed)):
            if label:
                follows = place + length < 7 and pool.token_ids[second] == pool.token_ids[place + length]
                assert (label == MISTAKEN) == follows
                told[bool(follows)] += 1
    assert min(told.values()) > 5


@pytest.mark.parametrize(("sequence_length", "short_fraction"), [(8, 0.1), (64, 0), (64, 1), (512, 0.1)])
def test_pairs_are_never_empty_or_too_long(sequence_length, short_fraction):
    for _, pairs in all_pairs(synthetic_corpus(), sequence_length, short_fraction):
        assert pairs
        for pair in pairs:
            assert len(pair.first) and len(pair.second)
            assert len(pair.first) + len(pair.second) <= sequence_length - 3


def test_pairs_take_their_second_segment_from_where_they_say():
    for number, pairs in all_pairs(synthetic_corpus()):
        for pair in pairs:
            assert np.all(pair.first // SENTENCE**2 == number)
            second = set(pair.second // SENTENCE**2)
            assert len(second) == 1
            assert (second == {number}) != pair.is_random_next


def test_pairs_keep_the_order_of_the_document():
    for _, pairs in all_pairs(synthetic_corpus()):
        last = -1
        for pair in pairs:
            own = [pair.first] if pair.is_random_next else [pair.first, pair.second]
            for segment in own:
                assert np.all(np.diff(segment) > 0)
                assert segment[0] > last
                last = segment[-1]
            assert np.all(np.diff(pair.second) > 0)


def test_pairs_lose_no_sentence():
    # Sentences of one token and a long limit: nothing is truncated, so every token of the document must come once.
    corpus = make_corpus([[1] * 40 for _ in range(5)])
    for number, pairs in all_pairs(corpus, sequence_length=16, short_fraction=0.5):
        own = [
            segment
            for pair in pairs
            for segment in ([pair.first] if pair.is_random_next else [pair.first, pair.second])
        ]
        assert np.concatenate(own).tolist() == np.concatenate(corpus[number]).tolist()


def test_pairs_of_long_sentences_lose_only_what_truncation_cuts():
    for number, pairs in all_pairs(synthetic_corpus()):
        sentences = [np.unique(pair.first // SENTENCE) for pair in pairs]
        sentences += [np.unique(pair.second // SENTENCE) for pair in pairs if not pair.is_random_next]
        total = sum(map(len, synthetic_corpus()[number]))
        if total <= 61:  # what fits in one pair is never cut
            assert len(np.unique(np.concatenate(sentences))) == len(synthetic_corpus()[number])


def test_pair_of_one_sentence_is_always_random():
    corpus = make_corpus([[5], [4, 4], [70]])
    for seed in range(20):
        assert [pair.is_random_next for pair in build(corpus, 0, seed=seed)] == [True]
        assert [pair.is_random_next for pair in build(corpus, 2, seed=seed)] == [True]


def test_pairs_of_a_lone_document_are_never_called_random():
    corpus = make_corpus([[3] * 30])
    pairs = [pair for seed in range(5) for pair in build(corpus, 0, 16, seed=seed)]
    assert pairs and not any(pair.is_random_next for pair in pairs)
    assert build(make_corpus([[3]]), 0) == []
    assert build([[]], 0) == []


def test_random_second_segment_may_come_from_any_place_of_any_other_document():
    corpus = make_corpus([[9], [1, 1, 1], [1], [1, 1]])
    starts = Counter()
    for seed in range(3000):
        (pair,) = build(corpus, 0, 13, 0, seed)  # target 10 for both: one token is wanted, so B is one sentence
        starts[int(pair.second[0]) // SENTENCE] += 1
        assert len(pair.second) == 1
    # a document evenly, then a sentence of it evenly
    expected = {1000: 1 / 9, 1001: 1 / 9, 1002: 1 / 9, 2000: 1 / 3, 3000: 1 / 6, 3001: 1 / 6}
    assert starts.keys() == expected.keys()
    assert (
        stats.chisquare([starts[key] for key in expected], [3000 * share for share in expected.values()]).pvalue > 0.001
    )


def test_truncation_has_the_lengths_of_google():
    for first in range(1, 25):
        for second in range(1, 25):
            ours = truncate_pair(np.arange(first), np.arange(second) + 100, 20, np.random.default_rng(0))
            theirs = list(range(first)), list(range(second))
            google_pairs.truncate_pair(*theirs, 20, random.Random(0))
            assert tuple(map(len, ours)) == tuple(map(len, theirs))
            assert all(np.all(np.diff(segment) == 1) for segment in ours)  # cut at the ends alone


def test_truncation_cuts_front_and_back_as_google_does():
    ours, theirs = Counter(), Counter()
    rng, plain = np.random.default_rng(1), random.Random(1)
    for _ in range(4000):
        ours[int(truncate_pair(np.arange(8), np.arange(10), 10, rng)[1][0])] += 1
        first, second = list(range(8)), list(range(10))
        google_pairs.truncate_pair(first, second, 10, plain)
        theirs[second[0]] += 1
    assert_same_distribution(ours, theirs)


def test_truncation_leaves_a_pair_that_fits():
    first, second = truncate_pair(np.arange(3), np.arange(4), 7, np.random.default_rng(0))
    assert (first.tolist(), second.tolist()) == ([0, 1, 2], [0, 1, 2, 3])


def assert_same_distribution(ours: Counter, theirs: Counter) -> None:
    """Compare counts by chi-square at p > 0.001; the seeds are fixed, so this holds always or never."""
    keys = [key for key in ours.keys() | theirs.keys() if ours[key] + theirs[key] >= 20]
    table = [[counts[key] for key in keys] for counts in (ours, theirs)]
    rare = [counts.total() - sum(row) for counts, row in zip((ours, theirs), table, strict=True)]
    if sum(rare) >= 20:
        table = [[*row, number] for row, number in zip(table, rare, strict=True)]
    assert stats.chi2_contingency(table).pvalue > 0.001


def observe(passes):
    """Describe passes over documents, one observation of each kind a pass.

    The pairs of one pass share its target length, so only passes are independent, as the test wants them.
    """
    seen = {name: Counter() for name in ("pairs", "random", "share", "tokens")}
    seen |= {f"{place} {what}": Counter() for place in ("first", "last") for what in ("a", "b", "both", "random")}
    for pairs in passes:
        random_next = sum(bool(is_random_next) for _, _, is_random_next in pairs)
        seen["pairs"][len(pairs)] += 1
        seen["random"][random_next] += 1
        seen["share"][round(random_next / len(pairs), 1)] += 1
        seen["tokens"][sum(len(first) + len(second) for first, second, _ in pairs) // 32] += 1
        for place, (first, second, is_random_next) in (("first", pairs[0]), ("last", pairs[-1])):
            seen[f"{place} a"][len(first) // 4] += 1
            seen[f"{place} b"][len(second) // 4] += 1
            seen[f"{place} both"][(len(first) + len(second)) // 4] += 1
            seen[f"{place} random"][bool(is_random_next)] += 1
    return seen


def compare_with_google(corpus, sequence_length, short_fraction, passes):
    # Our B never comes from the document itself. There it can, once in len(corpus) ** 10 draws: too rare to show.
    rng, plain, pool = np.random.default_rng(10), random.Random(10), make_pool(corpus)
    lists = [[sentence.tolist() for sentence in document] for document in corpus]
    ours, theirs = [], []
    for number in range(len(corpus)):
        for _ in range(passes):
            pairs = NextSentence().draw_pairs(pool, number, sequence_length, short_fraction, rng)
            ours.append(cut_pairs(pool, pairs, sequence_length, rng))
            theirs.append(google_pairs.create_pairs(lists, number, sequence_length - 3, short_fraction, plain))
    ours, theirs = observe(ours), observe(theirs)
    for name in ours:
        assert_same_distribution(ours[name], theirs[name])


@pytest.mark.parametrize(("sequence_length", "short_fraction"), [(32, 0.1), (64, 0.5), (128, 0.0)])
@pytest.mark.first_form
def test_pairs_are_distributed_as_google_makes_them(sequence_length, short_fraction):
    compare_with_google(synthetic_corpus(seed=3), sequence_length, short_fraction, passes=60)


@pytest.mark.slow
@needs_data
def test_pairs_of_wikipedia_are_distributed_as_google_makes_them():
    path = str(Path(DATA) / "corpus" / "wiki_en_dev.txt")
    documents = [document for document, _ in zip(read_documents(path, ReadingRule()), range(8), strict=False)]
    corpus = make_corpus([[len(sentence.split()) for sentence in document.sentences] for document in documents])
    compare_with_google(corpus, 128, 0.1, passes=150)


def test_joined_pairs_have_special_tokens_segments_and_zeros():
    token_ids = np.arange(500, 520)
    places = np.array([[0, 2, 10, 1], [3, 3, 4, 2], [19, 1, 18, 2]])  # the second as long as may be
    rows = join_pairs(token_ids, places, np.array([True, False, True]), 8, 2, 3)
    assert rows.token_ids.tolist() == [
        [2, 500, 501, 3, 510, 3, 0, 0],
        [2, 503, 504, 505, 3, 504, 505, 3],
        [2, 519, 3, 518, 519, 3, 0, 0],
    ]
    assert rows.segment_ids.tolist() == [[0, 0, 0, 0, 1, 1, 0, 0], [0] * 5 + [1] * 3, [0, 0, 0, 1, 1, 1, 0, 0]]
    assert (rows.lengths.tolist(), rows.sentence_labels.tolist()) == ([6, 8, 6], [True, False, True])
    assert rows.token_ids.dtype == np.int32


def test_pool_knows_where_sentences_and_documents_begin():
    pool = make_pool([[[5], [6, 7, 8]], [], [[9, 9]]])
    assert (pool.token_ids.tolist(), pool.borders, pool.firsts) == ([5, 6, 7, 8, 9, 9], [0, 1, 4, 6], [0, 2, 2, 3])
    assert [pool.end_of_chunk(0, 2, target) for target in (-5, 0, 1, 2, 4, 5)] == [1, 1, 1, 2, 2, 2]
    assert pool.place(1, 3) == (1, 5)
