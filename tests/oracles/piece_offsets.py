"""Find the characters of each piece one by one, by the rules of google-research/bert, to compare with."""

import unicodedata

from tests.oracles.google_tokenizer import HAN, is_dropped, is_punctuation, is_space, match_word


def traced_pieces(text, vocabulary, cased):
    """Return (piece, start, end) of each piece: every folded character carries the place that it came from."""
    words, word = [], []
    for place, character in enumerate(text):
        if is_dropped(character):
            continue
        is_han = any(ord(character) in block for block in HAN)
        if is_space(character) or character.isspace() or is_han:  # str.split() knows more than `is_space`
            words += [word, [(character, place)] if is_han else []]
            word = []
        else:
            word = [*word, (character, place)]
    parts = [part for pairs in [*words, word] for part in split(pairs if cased else fold(pairs))]
    found = [piece for part in parts for piece in trace(part, vocabulary)]
    return [(piece, start, end if cased else with_accents(text, end)) for piece, start, end in found]


def fold(word):
    """Lower-case (the two small sigmas are one to the offsets, not to the vocabulary), decompose, strip accents."""
    lowered = "".join(character for character, _ in word).lower()
    places = [place for character, place in word for _ in character.lower()]
    pairs = [
        (part, place)
        for character, place in zip(lowered, places, strict=True)
        for part in unicodedata.normalize("NFD", character)
    ]
    return [(part, place) for part, place in pairs if unicodedata.category(part) != "Mn"]


def split(pairs):
    parts = [[]]
    for pair in pairs:
        if is_punctuation(pair[0]):
            parts += [[pair], []]
        else:
            parts[-1].append(pair)
    return [part for part in parts if part]


def trace(word, vocabulary):
    pieces = match_word("".join(character for character, _ in word), vocabulary)
    if pieces == ["[UNK]"]:
        return [("[UNK]", word[0][1], word[-1][1] + 1)]
    found, at = [], 0
    for piece in pieces:
        length = len(piece) - (2 if at else 0)
        found.append((piece, word[at][1], word[at + length - 1][1] + 1))
        at += length
    return found


def with_accents(text, end):
    """Move an end behind the accents that stand there, perhaps with dropped characters before or between them."""
    for place in range(end, len(text)):
        folded = unicodedata.normalize("NFD", text[place].lower())
        if is_dropped(text[place]):
            continue
        if any(unicodedata.category(part) != "Mn" for part in folded):
            break
        end = place + 1
    return end
