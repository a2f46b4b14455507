"""Learn a WordPiece vocabulary from word counts, deterministically."""

from collections import Counter
from collections.abc import Mapping

import numpy as np

from keras_bert_flow.text.tokenizers.normalization import is_han, is_punctuation
from keras_bert_flow.text.tokenizers.wordpiece import MAX_WORD_CHARACTERS
from keras_bert_flow.text.vocabulary.candidates import Candidates, find_candidates
from keras_bert_flow.text.vocabulary.greedy import (
    Encoding,
    count_tokens,
    count_uses,
    encode_greedily,
    find_gains,
    find_losses,
)
from keras_bert_flow.text.vocabulary.vocab_file import CONTINUATION, SPECIAL_PIECES

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
    """
    word_counts, further_han = _keep_usable(word_counts, min_character_count, max_cjk_characters)
    characters = _list_characters(word_counts)
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


def _list_characters(word_counts: Mapping[str, int]) -> list[str]:
    """Return each character as it occurs, and each letter in both forms, so that other words of these are known."""
    firsts, others = {word[0] for word in word_counts}, {character for word in word_counts for character in word[1:]}
    letters = {character for character in firsts | others if not is_han(character) and not is_punctuation(character)}
    return [*sorted(firsts | letters), *sorted(CONTINUATION + character for character in others | letters)]


def _choose_longer(candidates: Candidates, room: int) -> list[str]:
    """Return at most `room` candidates of two and more characters, most used first."""
    characters = int((candidates.lengths == 1).sum())
    is_chosen = _improve(candidates, _prune(candidates, characters + room))
    uses = count_uses(candidates, encode_greedily(candidates, is_chosen))
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
