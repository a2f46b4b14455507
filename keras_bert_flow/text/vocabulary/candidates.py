"""Candidate pieces of a vocabulary: frequent substrings of counted words, and all of their positions."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from keras_bert_flow.text.vocabulary.vocab_file import CONTINUATION

MAX_PIECE_CHARACTERS = 50
_MIN_COUNT = 2  # a longer piece seen once would save tokens of the text it was learnt from, but hardly any elsewhere


@dataclass(frozen=True)
class Candidates:
    """Words laid end to end, each followed by a gap of one position, and the pieces that could cover them.

    Attributes:
        text: the words, with NUL in each gap.
        starts: int, (words,). Position of each word's first character.
        from_the_end: for 1, 2, ... characters to the end of the word, the positions where that many remain, int.
        occurrences: float, (places,). Count of the word at each position.
        matches: for each length 1, 2, ... (places, pieces): where a candidate of this length begins, and which one.
            Candidates are numbered by length.
        counts: float, (candidates,). Occurrences of each.
        lengths: int, (candidates,). Characters of each, without `##`.
        examples: int, (candidates,). A position where each begins.
    """

    text: str
    starts: np.ndarray
    from_the_end: list[np.ndarray]
    occurrences: np.ndarray
    matches: list[tuple[np.ndarray, np.ndarray]]
    counts: np.ndarray
    lengths: np.ndarray
    examples: np.ndarray

    def name(self, piece: int) -> str:
        """Return a candidate as written in a vocabulary."""
        place = self.examples[piece]
        characters = self.text[place : place + self.lengths[piece]]
        return characters if place == 0 or self.text[place - 1] == "\0" else CONTINUATION + characters

    def keep(self, is_kept: np.ndarray) -> "Candidates":
        """Return these words with fewer candidates; `is_kept` is bool, (candidates,)."""
        numbers = (np.cumsum(is_kept) - 1).astype(np.int32)
        matches = []
        for places, pieces in self.matches:
            stays = is_kept[pieces]
            matches.append((places[stays], numbers[pieces[stays]]))
        kept = {name: getattr(self, name)[is_kept] for name in ("counts", "lengths", "examples")}
        return replace(self, matches=matches, **kept)


def find_candidates(word_counts: Mapping[str, int]) -> Candidates:
    """Return each character, and each longer substring that occurs twice and is not always part of one longer.

    What begins a word and what continues one are different candidates. A substring that the same character always
    follows is left out, since the longer one covers more at the same positions; so is one of over 50 characters.
    A trie is walked down from all positions at once, one level for each length: time and memory grow with the positions
    at which frequent substrings begin, not with the square of a word's length.

    Args:
        word_counts: count of each word; no word is empty or contains NUL. Their order has no effect.
    """
    words = sorted(word_counts)
    lengths = np.array([len(word) for word in words], np.int64)
    ends = np.cumsum(lengths + 1)
    starts = ends - lengths - 1
    text = "\0".join([*words, ""])
    remaining = (np.repeat(ends - 1, lengths + 1) - np.arange(len(text))).astype(np.int32)
    occurrences = np.repeat(np.array([word_counts[word] for word in words], np.float64), lengths + 1)
    levels, is_covered = _walk_down(text, starts, remaining, occurrences)
    counts = [level.counts for level in levels]
    numbers = np.cumsum([0, *map(len, counts)])
    everything = Candidates(
        text=text,
        starts=starts,
        from_the_end=_group(remaining),
        occurrences=occurrences,
        matches=[(level.places, level.nodes + np.int32(first)) for level, first in zip(levels, numbers, strict=False)],
        counts=np.concatenate([np.zeros(0), *counts]),
        lengths=np.repeat(np.arange(1, len(levels) + 1), np.diff(numbers)),
        examples=np.concatenate([np.zeros(0, np.int64), *(level.examples for level in levels)]),
    )
    return everything.keep(~np.concatenate([np.zeros(0, bool), *is_covered]))


def _group(remaining: np.ndarray) -> list[np.ndarray]:
    """Return the positions by how many characters remain, without those of gaps."""
    order = np.argsort(remaining, kind="stable").astype(np.int32)
    bounds = np.searchsorted(remaining[order], np.arange(1, remaining.max(initial=0) + 2))
    return [order[begin:end] for begin, end in zip(bounds, bounds[1:], strict=False)]


class _Level(NamedTuple):
    """The nodes of one depth of the trie, numbered from 0."""

    places: np.ndarray
    nodes: np.ndarray  # the node of each of these places
    counts: np.ndarray  # (nodes,)
    examples: np.ndarray  # (nodes,), a position of each


def _walk_down(
    text: str, starts: np.ndarray, remaining: np.ndarray, occurrences: np.ndarray
) -> tuple[list[_Level], list[np.ndarray]]:
    """Return the levels of the trie, and for each level which of its nodes are covered by one child."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    alphabet, characters = np.unique(codes, return_inverse=True)
    is_start = np.zeros(len(text), np.int64)
    is_start[starts] = 1
    places = np.flatnonzero(remaining)
    parents = is_start[places]  # two roots: 0 for continuations, 1 for beginnings of words
    levels: list[_Level] = []
    is_covered: list[np.ndarray] = []
    while len(places) and len(levels) < MAX_PIECE_CHARACTERS:
        depth = len(levels) + 1
        keys = parents * len(alphabet) + characters[places + depth - 1]
        keys, firsts, nodes = np.unique(keys, return_index=True, return_inverse=True)
        counts = np.bincount(nodes, occurrences[places])
        if depth > 2:  # characters are never left out
            above = keys // len(alphabet)
            is_covered[-1][above[counts == levels[-1].counts[above]]] = True
        is_kept = (counts >= _MIN_COUNT) | (depth == 1)
        examples, stays, numbers = places[firsts[is_kept]], is_kept[nodes], np.cumsum(is_kept) - 1
        places, nodes = places[stays], numbers[nodes[stays]]
        levels.append(_Level(places.astype(np.int32), nodes.astype(np.int32), counts[is_kept], examples))
        is_covered.append(np.zeros(len(examples), bool))
        goes_on = remaining[places] > depth
        places, parents = places[goes_on], nodes[goes_on]
    return levels, is_covered
