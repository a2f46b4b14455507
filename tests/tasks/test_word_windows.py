import random

import numpy as np
import pytest

from keras_bert_flow.tasks.formats.tagged_words import TaggedWords
from keras_bert_flow.tasks.token_classification import TokenClassification, cut_windows
from keras_bert_flow.text.tokenizers.wordpiece import WordPieceTokenizer

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "ab", "##c", "-"]


def context(window, lengths, word):
    """Count the pieces that a window shows before and after a word; the fewer first, then both."""
    before, after = sum(lengths[window.first : word]), sum(lengths[word + 1 : window.end])
    return min(before, after), before + after


def test_windows_of_one_piece_words_overlap_by_what_the_stride_leaves():
    windows = cut_windows(np.ones(9, dtype=int), room=5, stride=2)
    assert [(window.first, window.end) for window in windows] == [(0, 5), (2, 7), (4, 9)]
    # Word 3 has 3 and 1 around it in the first window, 1 and 3 in the second: the earlier one is taken.
    assert [window.answered.tolist() for window in windows] == [[0, 1, 2, 3], [4, 5], [6, 7, 8]]
    assert [window.positions.tolist() for window in windows] == [[1, 2, 3, 4], [3, 4], [3, 4, 5]]


def test_a_word_of_several_pieces_is_never_cut():
    windows = cut_windows(np.array([2, 3, 3, 1]), room=6, stride=3)
    assert [(window.first, window.end) for window in windows] == [(0, 2), (1, 3), (2, 4)]
    # Word 1 has 2 pieces around it in the first window, all before it, and 3 in the second.
    assert [window.answered.tolist() for window in windows] == [[0], [1, 2], [3]]
    assert [window.positions.tolist() for window in windows] == [[1], [1, 4], [4]]


def test_a_sentence_that_fits_is_one_window():
    (window,) = cut_windows(np.array([2, 3, 1]), room=6, stride=1)
    assert (window.first, window.end, window.answered.tolist(), window.positions.tolist()) == (
        0,
        3,
        [0, 1, 2],
        [1, 3, 6],
    )
    (window,) = cut_windows(np.array([], dtype=int), room=6, stride=1)
    assert (window.first, window.end, len(window.answered)) == (0, 0, 0)


def test_every_word_is_answered_once_where_most_is_around_it():
    rng = random.Random(11)
    cut = 0
    for _ in range(1500):
        room = rng.randint(1, 12)
        stride = rng.randint(1, room)
        lengths = [rng.randint(1, min(room, rng.choice((1, 3, 12)))) for _ in range(rng.randint(1, 30))]
        windows = cut_windows(np.array(lengths), room, stride)
        assert sorted(word for window in windows for word in window.answered) == list(range(len(lengths)))
        assert all(sum(lengths[window.first : window.end]) <= room for window in windows)
        for before, after in zip(windows, windows[1:], strict=False):
            assert before.first < after.first <= before.end < after.end
        for window in windows:
            for word, position in zip(window.answered, window.positions, strict=True):
                assert position == 1 + sum(lengths[window.first : word])
                others = [other for other in windows if other.first <= word < other.end]
                best = max(context(other, lengths, word) for other in others)
                first_best = next(other for other in others if context(other, lengths, word) == best)
                assert window is first_best
        cut += len(windows) > 2
    assert cut > 500


@pytest.mark.parametrize("word", ["\u200b", "\x00", "\ufeff\u00ad"])
def test_a_word_of_which_nothing_is_left_is_unknown(word):
    tokenizer = WordPieceTokenizer(PIECES)
    assert tokenizer.encode(word).size == 0
    features = TokenClassification().encode(tokenizer, [TaggedWords((word, "abc", "ab-abc"))], 16)
    assert features.token_ids[0].tolist() == [tokenizer.cls_id, tokenizer.unk_id, 5, 6, 5, 7, 5, 6, tokenizer.sep_id]
