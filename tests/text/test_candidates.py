import random
from collections import Counter

import numpy as np
import pytest

from keras_bert_flow.text.learner import MAX_PIECE_CHARACTERS, find_candidates


def find_slowly(word_counts):
    """Count every substring in a dictionary, then leave out the rare and the covered ones."""
    counts = Counter()
    for word, count in word_counts.items():
        for begin in range(len(word)):
            for end in range(begin + 1, len(word) + 1):
                counts["##" * (begin > 0) + word[begin:end]] += count
    alphabet = {character for word in word_counts for character in word}
    return {
        piece: count
        for piece, count in counts.items()
        if len(piece.removeprefix("##")) == 1
        or (count >= 2 and all(counts[piece + character] < count for character in alphabet))
    }


def make_counts(seed, alphabet, words=60, longest=9):
    rng = random.Random(seed)
    return {"".join(rng.choices(alphabet, k=rng.randint(1, longest))): rng.randint(1, 6) for _ in range(words)}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("alphabet", ["ab", "abcdé中𐀊"])
def test_candidates_equal_counting_every_substring(seed, alphabet):
    word_counts = make_counts(seed, alphabet)
    found = find_candidates(word_counts)
    names = [found.name(piece) for piece in range(len(found.counts))]
    assert dict(zip(names, found.counts, strict=True)) == find_slowly(word_counts)
    assert [len(name.removeprefix("##")) for name in names] == found.lengths.tolist()


def test_candidates_match_where_they_stand():
    word_counts = make_counts(9, "abc")
    found = find_candidates(word_counts)
    words = sorted(word_counts)
    assert [found.text[place:].split("\0")[0] for place in found.starts] == words
    assert found.occurrences[found.starts].tolist() == [word_counts[word] for word in words]
    for length, (places, pieces) in enumerate(found.matches, 1):
        for place, piece in zip(places.tolist(), pieces.tolist(), strict=True):
            prefix = "" if place in found.starts else "##"
            assert found.name(piece) == prefix + found.text[place : place + length]
    totals = sum(np.bincount(p, found.occurrences[at], len(found.counts)) for at, p in found.matches)
    assert totals.tolist() == found.counts.tolist()  # no place is missing


def test_candidates_are_of_bounded_length():
    found = find_candidates({"x" * 200: 9})
    assert found.lengths.max() == MAX_PIECE_CHARACTERS == 50


def test_candidates_of_no_words_are_none():
    assert len(find_candidates({}).counts) == 0
