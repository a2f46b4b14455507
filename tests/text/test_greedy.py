"""The oracle is the WordPiece encoder of `tokenizers`."""

import random

import numpy as np
import pytest
from tokenizers.models import WordPiece

from keras_bert_flow.text.learner import count_tokens, encode_greedily, find_candidates, find_gains, find_losses


def make_words(seed, distinct=True):
    """Return counts of words; with `distinct`, no character twice in a word, so no piece either."""
    rng = random.Random(seed)
    words = set()
    while len(words) < 80:
        length = rng.randint(1, 7)
        words.add("".join(rng.sample("abcdefgh", length) if distinct else rng.choices("abc", k=length)))
    return {word: rng.randint(1, 9) for word in sorted(words)}


def tokenize_all(words, candidates, is_chosen):
    names = ["[UNK]", *(candidates.name(piece) for piece in np.flatnonzero(is_chosen))]
    model = WordPiece(
        {name: number for number, name in enumerate(names)}, unk_token="[UNK]", continuing_subword_prefix="##"
    )
    return {word: [token.value for token in model.tokenize(word)] for word in words}


def count_all(words, candidates, is_chosen):
    return sum(words[word] * len(tokens) for word, tokens in tokenize_all(words, candidates, is_chosen).items())


def choose(candidates, seed):
    is_chosen = np.random.default_rng(seed).random(len(candidates.counts)) < 0.5
    return is_chosen | (candidates.lengths == 1)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("distinct", [True, False])
def test_greedy_encodes_as_tokenizers(seed, distinct):
    words = make_words(seed, distinct)
    candidates = find_candidates(words)
    is_chosen = choose(candidates, seed)
    encoding = encode_greedily(candidates, is_chosen)
    expected = tokenize_all(words, candidates, is_chosen)
    assert encoding.tokens[candidates.starts].tolist() == [len(expected[word]) for word in sorted(words)]
    assert count_tokens(candidates, encoding) == count_all(words, candidates, is_chosen)
    found = [candidates.name(piece) for piece in encoding.piece[encoding.is_reached]]
    assert found == [name for word in sorted(words) for name in expected[word]]


@pytest.mark.parametrize("seed", range(3))
def test_losses_and_gains_are_what_encoding_again_shows(seed):
    words = make_words(seed)
    candidates = find_candidates(words)
    is_chosen = choose(candidates, seed)
    encoding = encode_greedily(candidates, is_chosen)
    losses, gains = find_losses(candidates, encoding), find_gains(candidates, encoding)
    before = count_all(words, candidates, is_chosen)
    for piece in np.flatnonzero(candidates.lengths > 1):
        changed = is_chosen.copy()
        changed[piece] ^= True
        after = count_all(words, candidates, changed)
        assert (losses[piece], gains[piece]) == ((after - before, 0) if is_chosen[piece] else (0, before - after))
    assert losses.max() > 0 and gains.max() > 0
