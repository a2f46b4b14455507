"""A slow tokenizer that follows the rules of google-research/bert's tokenization.py step by step, to compare with."""

import unicodedata

HAN = [
    range(0x4E00, 0x9FFF + 1),
    range(0x3400, 0x4DBF + 1),
    range(0x20000, 0x2A6DF + 1),
    range(0x2A700, 0x2B73F + 1),
    range(0x2B740, 0x2B81F + 1),
    range(0x2B820, 0x2CEAF + 1),
    range(0xF900, 0xFAFF + 1),
    range(0x2F800, 0x2FA1F + 1),
]


def google_words(text, cased):
    """Clean, space Han, split at whitespace; then fold and split each word at punctuation."""
    text = "".join(" " if is_space(c) else c for c in text if not is_dropped(c))
    text = "".join(f" {c} " if any(ord(c) in block for block in HAN) else c for c in text)
    words = []
    for word in text.split():
        if not cased:
            folded = unicodedata.normalize("NFD", word.lower())
            word = "".join(c for c in folded if unicodedata.category(c) != "Mn")
        words.extend(split_punctuation(word))
    return " ".join(words).split()


def google_pieces(text, vocabulary, cased):
    """Greedy longest match from the left; a word that cannot be matched, or of over 200 characters, is [UNK]."""
    return [piece for word in google_words(text, cased) for piece in match_word(word, vocabulary)]


def match_word(word, vocabulary):
    if len(word) > 200:
        return ["[UNK]"]
    pieces = []
    start = 0
    while start < len(word):
        for end in range(len(word), start, -1):
            piece = ("##" if start else "") + word[start:end]
            if piece in vocabulary:
                pieces.append(piece)
                start = end
                break
        else:
            return ["[UNK]"]
    return pieces


def split_punctuation(word):
    parts = [""]
    for c in word:
        if is_punctuation(c):
            parts += [c, ""]
        else:
            parts[-1] += c
    return [part for part in parts if part]


def is_dropped(c):
    if ord(c) in (0, 0xFFFD):
        return True
    return c not in ("\t", "\n", "\r") and unicodedata.category(c) in ("Cc", "Cf")


def is_space(c):
    return c in (" ", "\t", "\n", "\r") or unicodedata.category(c) == "Zs"


def is_punctuation(c):
    code = ord(c)
    if 33 <= code <= 47 or 58 <= code <= 64 or 91 <= code <= 96 or 123 <= code <= 126:
        return True
    return unicodedata.category(c).startswith("P")
