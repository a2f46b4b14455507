"""Split sentences that are too long for a model into overlapping windows, at word boundaries."""

from dataclasses import dataclass

import numpy as np

from keras_bert_flow.text.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True)
class Window:
    """The words of one row, and those whose predictions are taken from it.

    Attributes:
        first: first word of the row.
        end: word after the last one of the row.
        answered: words of the sentence whose prediction is taken from this window, int, (answers,).
        positions: position of their first pieces in the row, int, (answers,).
    """

    first: int
    end: int
    answered: np.ndarray
    positions: np.ndarray


class PiecesOfWords(dict):
    """Cache of the pieces of words. A word without pieces, such as one of control characters only, is [UNK]."""

    def __init__(self, tokenizer: Tokenizer):
        super().__init__()
        self._tokenizer = tokenizer

    def __missing__(self, word: str) -> tuple[int, ...]:
        self[word] = pieces = tuple(self._tokenizer.encode_word(word).tolist()) or (self._tokenizer.unk_id,)
        return pieces


def window_size(sequence_length: int, stride: int | None) -> tuple[int, int]:
    """Return the number of pieces that fit into a row, and the stride; None becomes half a window.

    Raises:
        ValueError: no piece fits, or the stride is longer than that.
    """
    room = sequence_length - 2  # [CLS], [SEP]
    if room < 1:
        raise ValueError(f"`sequence_length` must be at least 3. Received: {sequence_length}. Take 128.")
    stride = stride or max(room // 2, 1)
    if stride > room:
        raise ValueError(
            f"`stride` must be at most `sequence_length` - 2, or words would fall between windows. Received: "
            f"stride={stride}, sequence_length={sequence_length}. Try stride={max(room // 2, 1)}."
        )
    return room, stride


def cut_windows(lengths: np.ndarray, room: int, stride: int) -> list[Window]:
    """Split a sentence into windows; each word is predicted in the window with the most context around it.

    Most context means more pieces on the shorter side, then more on both sides, then the earlier window. Words are
    never split between windows.

    Args:
        lengths: pieces of each word, from 1 to `room`, int, (words,).
        room: pieces of a window.
        stride: most pieces from the start of one window to the start of the next, but at least one word. At most
            `room`.
    Source: google-research/bert, run_squad.py, `_check_is_max_context`, where the second rule is 0.01 of the window's
    length, which would prefer a longer window to one with more context.
    """
    starts = np.concatenate([[0], np.cumsum(lengths)])  # (words + 1,), in pieces
    if starts[-1] <= room:
        words = np.arange(len(lengths))
        return [Window(0, len(lengths), words, 1 + starts[:-1])]
    ranges = _ranges(starts, room, stride)
    context = np.stack([_context(starts, first, end) for first, end in ranges])  # (windows, words)
    best = context.argmax(axis=0)  # the first of ties
    windows = []
    for number, (first, end) in enumerate(ranges):
        answered = np.flatnonzero(best == number)
        windows.append(Window(first, end, answered, 1 + starts[answered] - starts[first]))
    return windows


def _ranges(starts: np.ndarray, room: int, stride: int) -> list[tuple[int, int]]:
    ranges: list[tuple[int, int]] = []
    first, words = 0, len(starts) - 1
    while not ranges or ranges[-1][1] < words:
        end = int(np.searchsorted(starts, starts[first] + room, side="right")) - 1
        if not ranges or end > ranges[-1][1]:  # it contains a word that no other window has yet
            ranges.append((first, end))
        first = max(first + 1, int(np.searchsorted(starts, starts[first] + stride, side="right")) - 1)
    return ranges


def _context(starts: np.ndarray, first: int, end: int) -> np.ndarray:
    """Rank the context around each word in a window, int, (words,); -1 for words that are not in it."""
    before, after = starts[first:end] - starts[first], starts[end] - starts[first + 1 : end + 1]
    ranks = np.full(len(starts) - 1, -1)
    ranks[first:end] = np.minimum(before, after) * 2 * starts[-1] + before + after
    return ranks
