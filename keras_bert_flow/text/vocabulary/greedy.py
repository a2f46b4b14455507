"""Encode all counted words with the chosen pieces, and compute what each piece saves or would save."""

from dataclasses import dataclass

import numpy as np

from keras_bert_flow.text.vocabulary.candidates import Candidates


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


def count_uses(candidates: Candidates, encoding: Encoding) -> np.ndarray:
    """Return how often each candidate is a token of the counted text, float, (candidates,)."""
    places = np.flatnonzero(encoding.is_reached)
    return np.bincount(encoding.piece[places], candidates.occurrences[places], minlength=len(candidates.counts))


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
