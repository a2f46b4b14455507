"""Learn a WordPiece vocabulary from word counts, the same one every time."""

import heapq
from collections import Counter, defaultdict
from collections.abc import Mapping

from keras_bert_flow.text.tokenizer import MAX_WORD_CHARACTERS
from keras_bert_flow.text.vocabulary import CONTINUATION, SPECIAL_PIECES

Pair = tuple[str, str]


def learn_vocabulary(word_counts: Mapping[str, int], size: int, min_character_count: int = 1) -> list[str]:
    """Return exactly `size` pieces that encode every counted word without [UNK].

    First the special pieces, then each character in the forms that occur (`a`, `##a`), then the results of merging,
    again and again, the adjacent pair with the highest count over all words. Google never published the learner of
    2018; this frequency rule is what the trainers in use apply (`WordPieceTrainer` of Hugging Face `tokenizers` is its
    BPE trainer with the `##` prefix). Unlike there, equal counts are settled by string order, so the result depends on
    the counts alone. If nothing is left to merge, `[unused0]`, `[unused1]`, ... fill the rest.

    Args:
        word_counts: occurrences of each normalised word. Words longer than 200 characters are ignored: they encode
            to [UNK] under any vocabulary.
        size: pieces to return, special ones included.
        min_character_count: characters with fewer occurrences are left out, and words that hold them become [UNK].
    Raises:
        ValueError: `size` has no room for the characters.
    Source: Sennrich et al. 2016, arXiv:1508.07909, algorithm 1; Devlin et al. 2019, section 3.
    """
    words, counts = _split_words(word_counts, min_character_count)
    characters = sorted({piece for word in words for piece in word}, key=lambda piece: (len(piece), piece))
    pieces = dict.fromkeys((*SPECIAL_PIECES, *characters))  # a dict keeps the order
    if len(pieces) > size:
        raise ValueError(
            f"`size` must have room for {len(SPECIAL_PIECES)} special pieces and {len(characters)} characters (initial "
            f"and ## forms). Received: size={size}, min_character_count={min_character_count}. "
            f"Try size={2 * len(pieces)}, or a larger min_character_count to leave out rare characters."
        )
    _merge_pairs(words, counts, pieces, size)
    unused = 0
    while len(pieces) < size:
        pieces.setdefault(f"[unused{unused}]")
        unused += 1
    return list(pieces)


def _split_words(word_counts: Mapping[str, int], min_character_count: int) -> tuple[list[list[str]], list[int]]:
    """Split each usable word into characters, the later ones with ##."""
    usable = [(word, count) for word, count in word_counts.items() if 0 < len(word) <= MAX_WORD_CHARACTERS]
    character_counts: Counter[str] = Counter()
    for word, count in usable:
        for character in word:
            character_counts[character] += count
    rare = {character for character, count in character_counts.items() if count < min_character_count}
    usable = [(word, count) for word, count in usable if rare.isdisjoint(word)]
    words = [[word[0], *(CONTINUATION + character for character in word[1:])] for word, _ in usable]
    return words, [count for _, count in usable]


def _merge_pairs(words: list[list[str]], counts: list[int], pieces: dict[str, None], size: int) -> None:
    """Add merged pieces until there are `size` or no pair is left; `words` are changed on the way.

    The heap is lazy: an entry whose count is out of date is put back with the present one when it comes up.
    """
    pair_counts: Counter[Pair] = Counter()
    places: defaultdict[Pair, list[int]] = defaultdict(list)  # words that held the pair once; some no longer do
    for index, word in enumerate(words):
        for pair in zip(word, word[1:], strict=False):
            pair_counts[pair] += counts[index]
            places[pair].append(index)
    heap = [(-count, pair) for pair, count in pair_counts.items()]
    heapq.heapify(heap)
    while heap and len(pieces) < size:
        negative_count, pair = heapq.heappop(heap)
        count = pair_counts[pair]
        if count != -negative_count:
            if 0 < count < -negative_count:
                heapq.heappush(heap, (-count, pair))
            continue
        if count <= 0:
            continue
        merged = pair[0] + pair[1].removeprefix(CONTINUATION)
        pieces.setdefault(merged)
        grown: set[Pair] = set()
        for index in places.pop(pair):
            word, words[index] = words[index], _merge(words[index], pair, merged)
            if len(words[index]) == len(word):
                continue
            for old in zip(word, word[1:], strict=False):
                pair_counts[old] -= counts[index]
            for new in zip(words[index], words[index][1:], strict=False):
                pair_counts[new] += counts[index]
                if merged in new:
                    places[new].append(index)
                    grown.add(new)
        for new in grown:
            heapq.heappush(heap, (-pair_counts[new], new))


def _merge(word: list[str], pair: Pair, merged: str) -> list[str]:
    left, right = pair
    result = []
    position = 0
    while position < len(word):
        if word[position] == left and word[position + 1 : position + 2] == [right]:
            result.append(merged)
            position += 2
        else:
            result.append(word[position])
            position += 1
    return result
