"""Learn a WordPiece vocabulary from word counts, deterministically."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from keras_bert_flow.text.rows import as_fraction, keyed_numbers
from keras_bert_flow.text.tokenizers.normalization import is_han, is_punctuation
from keras_bert_flow.text.vocabulary import CONTINUATION, MAX_WORD_CHARACTERS, SPECIAL_PIECES

# Candidate pieces of a vocabulary: frequent substrings of counted words, and all of their positions.

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
    order = np.argsort(remaining, kind="stable").astype(np.int32)
    bounds = np.searchsorted(remaining[order], np.arange(1, remaining.max(initial=0) + 2))  # without gaps
    levels, is_covered = _walk_down(text, starts, remaining, occurrences)
    counts = [level.counts for level in levels]
    numbers = np.cumsum([0, *map(len, counts)])
    everything = Candidates(
        text=text,
        starts=starts,
        from_the_end=[order[begin:end] for begin, end in zip(bounds, bounds[1:], strict=False)],
        occurrences=occurrences,
        matches=[(level.places, level.nodes + np.int32(first)) for level, first in zip(levels, numbers, strict=False)],
        counts=np.concatenate([np.zeros(0), *counts]),
        lengths=np.repeat(np.arange(1, len(levels) + 1), np.diff(numbers)),
        examples=np.concatenate([np.zeros(0, np.int64), *(level.examples for level in levels)]),
    )
    return everything.keep(~np.concatenate([np.zeros(0, bool), *is_covered]))


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


# Encode all counted words with the chosen pieces, and compute what each piece saves or would save.


@dataclass(frozen=True)
class Encoding:
    """Greedy longest-match encoding of every word, and of every suffix of a word.

    Attributes:
        piece: int, (places,). The longest chosen candidate that begins here.
        longest: int, (places,). Its length in characters; 0 in a gap.
        second: int, (places,). Length of the next longest; 0 if there is none.
        tokens: int, (places,). Tokens from here to the end of the word.
        is_reached: bool, (places,). A token begins here when the whole word is encoded.
    """

    piece: np.ndarray
    longest: np.ndarray
    second: np.ndarray
    tokens: np.ndarray
    is_reached: np.ndarray


def encode_greedily(candidates: Candidates, is_chosen: np.ndarray) -> Encoding:
    """Encode every word by greedy longest match.

    Args:
        candidates: the words and their possible pieces.
        is_chosen: bool, (candidates,). Every single character must be among the chosen.
    Source: Wu et al. 2016, arXiv:1609.08144, section 4.1; google-research/bert, `WordpieceTokenizer`.
    """
    size = len(candidates.text)
    piece, longest, second, tokens = (np.zeros(size, np.int32) for _ in range(4))
    for length, (places, pieces) in enumerate(candidates.matches, 1):
        matches = is_chosen[pieces]
        places = places[matches]
        second[places] = longest[places]
        longest[places] = length
        piece[places] = pieces[matches]
    for places in candidates.from_the_end:
        tokens[places] = 1 + tokens[places + longest[places]]
    is_reached = np.zeros(size, bool)
    places = candidates.starts
    while len(places):
        is_reached[places] = True
        places = places + longest[places]
        places = places[longest[places] > 0]
    return Encoding(piece, longest, second, tokens, is_reached)


def count_tokens(candidates: Candidates, encoding: Encoding) -> float:
    """Return the number of tokens of the counted text."""
    return float(candidates.occurrences[candidates.starts] @ encoding.tokens[candidates.starts])


def find_losses(candidates: Candidates, encoding: Encoding) -> np.ndarray:
    """Return for each candidate how many more tokens the text would have without it, float, (candidates,).

    It is 0 for candidates that are not used, and may be negative. It is exact except for words that contain a piece
    twice: the rest of these is counted as it is now.
    """
    places = np.flatnonzero(encoding.is_reached & (encoding.second > 0))
    tokens, longest, second = encoding.tokens, encoding.longest[places], encoding.second[places]
    weights = candidates.occurrences[places] * (tokens[places + second] - tokens[places + longest])
    return np.bincount(encoding.piece[places], weights, minlength=len(candidates.counts))


def find_gains(candidates: Candidates, encoding: Encoding) -> np.ndarray:
    """Return for each candidate not chosen how many fewer tokens the text would have with it, float, (candidates,).

    It is 0 for chosen candidates, and may be negative. It is exact except for words that contain a piece twice.
    """
    gains = np.zeros(len(candidates.counts))
    for length, (places, pieces) in enumerate(candidates.matches, 1):
        would_match = encoding.is_reached[places] & (encoding.longest[places] < length)
        places, pieces = places[would_match], pieces[would_match]
        if len(places):
            tokens, longest = encoding.tokens, encoding.longest[places]
            weights = candidates.occurrences[places] * (tokens[places + longest] - tokens[places + length])
            first = pieces.min()  # candidates are numbered by length, so these lie close together
            sums = np.bincount(pieces - first, weights)
            gains[first : first + len(sums)] += sums
    return gains


MAX_CJK_CHARACTERS = 8000
# A piece saves less in other text than it saves here, especially if it is rare. The constants were chosen by learning
# from nine tenths of a training text and measuring on the last tenth.
_SHRINKAGE = 4.0
_KEPT_A_ROUND = 0.8
_EXCHANGE_ROUNDS = 30
_EXCHANGED_BELOW = 3
_EXCHANGED_SHARE = 0.1


def learn_vocabulary(
    word_counts: Mapping[str, int],
    size: int,
    min_character_count: int = 1,
    max_cjk_characters: int = MAX_CJK_CHARACTERS,
) -> list[str]:
    """Learn exactly `size` pieces that encode every counted word of allowed characters without [UNK].

    Google never published the learner of 2018, and the trainers in use merge frequent pairs, though WordPiece does not
    encode by merging but by longest match. Here pieces are chosen by their effect on that encoding. All frequent
    substrings of words are candidates. Repeatedly, all words are encoded, and the fifth of the pieces whose removal
    would cost the fewest tokens is dropped, until `size` are left. Near the end, pieces dropped too early replace
    others that save less, as long as the text gets shorter. The saving of a piece seen n times is weighted by n / (n +
    4), since rare ones seldom recur in other text.
    The special pieces come first, then the characters (letters as `a` and as `##a`, so that other words of these
    letters are known, too), then the others, most used first. Ties are broken by length and string order, so the result
    depends on the counts alone. If there are too few candidates, words seen once follow, then the Han characters beyond
    `max_cjk_characters`, most frequent first, and then `[unused0]`, `[unused1]`, ...

    Args:
        word_counts: count of each normalised word. Words longer than 200 characters are ignored: they encode to [UNK]
            under any vocabulary.
        size: number of pieces to return, special ones included.
        min_character_count: characters with a lower count are left out, and words that contain them become [UNK].
        max_cjk_characters: number of Han characters that have a piece in any case, the most frequent ones; the others
            have the pieces that nothing else needs, or are left out.
    Raises:
        ValueError: `size` is too small for the characters.
    Example:
        >>> counts = {"films": 9, "film": 8, "story": 7, "stories": 3}
        >>> pieces = kbf.learn_vocabulary(counts, size=30, min_character_count=1)
        >>> len(pieces), pieces[:5]
        (30, ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]'])
    """
    word_counts, further_han = _keep_usable(word_counts, min_character_count, max_cjk_characters)
    firsts, others = {word[0] for word in word_counts}, {character for word in word_counts for character in word[1:]}
    letters = {character for character in firsts | others if not is_han(character) and not is_punctuation(character)}
    # Each character as it occurs, and each letter in both forms, so that other words of these are known.
    characters = [*sorted(firsts | letters), *sorted(CONTINUATION + character for character in others | letters)]
    pieces = dict.fromkeys((*SPECIAL_PIECES, *characters))  # a dict keeps the order
    if len(pieces) > size:
        raise ValueError(
            f"`size` must have room for {len(SPECIAL_PIECES)} special pieces and {len(characters)} characters (initial "
            f"and ## forms). Received: size={size}, min_character_count={min_character_count}. "
            f"Try size={2 * len(pieces)}, or a larger min_character_count or a smaller max_cjk_characters to leave out "
            "rare characters."
        )
    pieces.update(dict.fromkeys(_choose_longer(find_candidates(word_counts), size - len(pieces))))
    for word in sorted(word_counts, key=lambda word: (-word_counts[word], word)):
        if len(pieces) == size:
            break
        pieces.setdefault(word)
    pieces.update(dict.fromkeys(further_han[: size - len(pieces)]))
    unused = 0
    while len(pieces) < size:
        pieces.setdefault(f"[unused{unused}]")
        unused += 1
    return list(pieces)


def _keep_usable(
    word_counts: Mapping[str, int], min_character_count: int, max_cjk_characters: int
) -> tuple[dict[str, int], list[str]]:
    """Drop words that are too long or contain a character that is left out of the vocabulary.

    Returns:
        The other words, and the Han characters beyond `max_cjk_characters`, most frequent first.
    """
    usable = {word: count for word, count in word_counts.items() if 0 < len(word) <= MAX_WORD_CHARACTERS and count > 0}
    character_counts: Counter[str] = Counter()
    for word, count in usable.items():
        for character in word:
            character_counts[character] += count
    by_count = sorted(character_counts, key=lambda character: (-character_counts[character], character))
    left_out = {character for character in by_count if character_counts[character] < min_character_count}
    further_han = [character for character in by_count if is_han(character)][max_cjk_characters:]
    kept_out = left_out.union(further_han, "\0")  # NUL separates two words in `Candidates.text`
    kept = {word: count for word, count in usable.items() if kept_out.isdisjoint(word)}
    return kept, [character for character in further_han if character not in left_out]


def _choose_longer(candidates: Candidates, room: int) -> list[str]:
    """Return at most `room` candidates of two and more characters, most used first."""
    characters = int((candidates.lengths == 1).sum())
    is_chosen = _improve(candidates, _prune(candidates, characters + room))
    encoding = encode_greedily(candidates, is_chosen)
    places = np.flatnonzero(encoding.is_reached)
    uses = np.bincount(encoding.piece[places], candidates.occurrences[places], minlength=len(candidates.counts))
    longer = np.flatnonzero(is_chosen & (candidates.lengths > 1))
    names = [candidates.name(int(piece)) for piece in longer]
    return [name for _, _, name in sorted(zip(-uses[longer], map(len, names), names, strict=True))]


def _prune(candidates: Candidates, number: int) -> np.ndarray:
    """Choose `number` candidates by repeatedly dropping those whose removal costs least.

    Candidates that are not used next to longer pieces are dropped early and may be needed when those are gone, so the
    last rounds end with an exchange.
    """
    is_chosen = np.ones(len(candidates.counts), bool)
    while (left := int(is_chosen.sum())) > number:
        wanted = max(number, int(_KEPT_A_ROUND * left))
        losses = find_losses(candidates, encode_greedily(candidates, is_chosen)) * _trust(candidates)
        is_chosen[_least(losses, is_chosen & (candidates.lengths > 1), left - wanted)] = False
        if wanted < _EXCHANGED_BELOW * number:
            encoding = encode_greedily(candidates, is_chosen)
            is_chosen = _exchange(candidates, is_chosen, encoding, int(_EXCHANGED_SHARE * wanted))
    return is_chosen


def _improve(candidates: Candidates, is_chosen: np.ndarray) -> np.ndarray:
    """Exchange candidates as long as the text gets shorter, in groups of decreasing size."""
    group = int(_EXCHANGED_SHARE * is_chosen.sum())
    encoding = encode_greedily(candidates, is_chosen)
    for _ in range(_EXCHANGE_ROUNDS):
        changed = _exchange(candidates, is_chosen, encoding, group)
        changed_encoding = encode_greedily(candidates, changed)
        if count_tokens(candidates, changed_encoding) < count_tokens(candidates, encoding):
            is_chosen, encoding = changed, changed_encoding
        elif group > 1:  # gains of pieces of the same words were counted twice
            group //= 2
        else:
            break
    return is_chosen


def _exchange(candidates: Candidates, is_chosen: np.ndarray, encoding: Encoding, most: int) -> np.ndarray:
    """Return the choice with at most `most` candidates exchanged for others that save more."""
    losses, gains = (find(candidates, encoding) * _trust(candidates) for find in (find_losses, find_gains))
    coming = _least(-gains, ~is_chosen, most)
    leaving = _least(losses, is_chosen & (candidates.lengths > 1), len(coming))
    pays = gains[coming[: len(leaving)]] > losses[leaving]
    changed = is_chosen.copy()
    changed[leaving[pays]], changed[coming[: len(leaving)][pays]] = False, True
    return changed


def _trust(candidates: Candidates) -> np.ndarray:
    return candidates.counts / (candidates.counts + _SHRINKAGE)


def _least(values: np.ndarray, is_eligible: np.ndarray, number: int) -> np.ndarray:
    """Return the `number` eligible indices of the smallest values, smallest first, ties by index."""
    eligible = np.flatnonzero(is_eligible)
    return eligible[np.argsort(values[eligible], kind="stable")[:number]]


# Limit the words that a vocabulary is learnt from to the most frequent ones that fit in memory.

MAX_PLACES = (
    8_000_000  # characters of all words and one more for each; the learner takes about 240 bytes of memory each
)

# Count of a word → total places of all words with that count
Histogram = Mapping[int, int]


def count_places(word: str) -> int:
    """Return the places of a word in the learner, 0 for one that it ignores."""
    return len(word) + 1 if len(word) <= MAX_WORD_CHARACTERS else 0


class WordLimit:
    """Decide which words to keep, as a function of the counts alone, without holding any words in memory.

    The most frequent words are kept, as many as fit. Of those that are as frequent as the first that does not fit, a
    share is chosen by a digest, so the limit holds on average.

    Args:
        histogram: histogram of all words.
        most: places of the words to keep.
    """

    def __init__(self, histogram: Histogram, most: int):
        self._find_number = keyed_numbers("words kept")
        self._least, self._share = 0, 1.0  # occurrences of the rarest words kept, and the share kept of those
        left = most
        for count in sorted(histogram, reverse=True):
            if histogram[count] > left:
                self._least, self._share = count, left / histogram[count]
                break
            left -= histogram[count]

    def __call__(self, word: str, count: int) -> bool:
        """Return whether to keep a word with this count."""
        if count != self._least:
            return count > self._least
        return as_fraction(self._find_number(word.encode())) < self._share


def add_histograms(histograms: Iterable[Histogram]) -> dict[int, int]:
    """Add up histograms."""
    total: dict[int, int] = {}
    for histogram in histograms:
        for count, places in histogram.items():
            total[count] = total.get(count, 0) + places
    return total
