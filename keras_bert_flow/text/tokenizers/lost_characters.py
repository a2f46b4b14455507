"""Count the characters of a text that a tokenizer loses, and describe the loss with what prevents it.

Characters are counted, not tokens: a whole sentence of a script without spaces may be one word, too long for WordPiece,
and then one [UNK]. Counters have these names wherever there are any:

- `characters`: all of them, spaces aside.
- `unknown_characters`: those of words that become [UNK].
- `long_word_characters`: those of words that are [UNK] since they are longer than `MAX_WORD_CHARACTERS`.
- `stripped_characters`: those that uncased normalisation drops, or makes another letter, by dropping a mark that is
  part of a letter: vowel signs and tones of Thai and Hindi, voicing of kana, tones of Vietnamese, й.
"""

import re
import unicodedata
from collections.abc import Mapping
from functools import cache

from keras_bert_flow.text.tokenizers.tokenizer import Tokenizer
from keras_bert_flow.text.tokenizers.wordpiece import MAX_WORD_CHARACTERS

LOST = ("unknown_characters", "long_word_characters", "stripped_characters")
TOLD_SHARE = 0.001  # of the characters; less is only counted
SEGMENTERS = "pythainlp (Thai), khmer-nltk (Khmer), laonlp (Lao) or pyidaungsu (Burmese)"
# Marks that are no letters on their own: accents of Latin, Greek and Cyrillic, of symbols, and variation selectors.
_ACCENTS = (
    (0x0300, 0x036F),
    (0x0483, 0x0487),
    (0x180B, 0x180F),
    (0x1AB0, 0x1AFF),
    (0x1DC0, 0x1DFF),
    (0x20D0, 0x20FF),
    (0xFE00, 0xFE0F),
    (0xFE20, 0xFE2F),
)
_VIETNAMESE = "\u0309\u031b\u0323"  # hook and dot of tones, and the horn of ơ and ư; the dot also of Yoruba and Igbo
_CYRILLIC = "йїўЙЇЎ"  # letters of their own, not и, і and у with an accent
_BEYOND = re.compile("[\U00010000-\U0001ffff]")  # where scripts end; what follows is Han and variation selectors


def count_characters(text: str) -> int:
    """Return the number of characters of a text, spaces aside."""
    return len(text) - text.count(" ")


def count_stripped(text: str) -> int:
    """Return how many characters of a text lose a mark that is part of a letter when accents are dropped.

    Example:
        >>> count_stripped("möchte"), count_stripped("ที่นี่"), count_stripped("がか"), count_stripped("йод")
        (0, 4, 1, 1)
    """
    if text.isascii():
        return 0
    usual, others = _find_marked()
    return len(usual.findall(text)) + (len(others.findall(text)) if _BEYOND.search(text) else 0)


def count_unknown(tokenizer: Tokenizer, text: str) -> dict[str, int]:
    """Return `unknown_characters` and `long_word_characters` of a text."""
    ids, starts, ends = tokenizer.encode_with_offsets(text)
    widths = (ends - starts)[ids == tokenizer.unk_id]
    long = widths[widths > MAX_WORD_CHARACTERS]
    return {"unknown_characters": int(widths.sum()), "long_word_characters": int(long.sum())}


def count_lost(tokenizer: Tokenizer, text: str) -> dict[str, int]:
    """Return all counters of a text."""
    counts = {"characters": count_characters(text)}
    if tokenizer.strips_accents:
        counts["stripped_characters"] = count_stripped(text)
    return counts | (count_unknown(tokenizer, text) if tokenizer.unk_id in tokenizer.encode(text) else {})


CASED = "Set vocabulary.cased: true (--cased), or take a cased model."
LEARN = (
    "The vocabulary lacks their characters. Learn one from this text with `kbf vocab`, with case as here and without "
    "vocabulary.min_character_count."
)


def describe_lost(counters: Mapping[str, int], subject: str, lacking: str = LEARN) -> list[str]:
    """Return a sentence on each kind of loss that is more than `TOLD_SHARE` of the characters, with its remedy.

    Args:
        counters: the counters; missing ones are 0.
        subject: where the characters are, such as "the corpus".
        lacking: what to do about characters that the vocabulary lacks.
    """
    found = []
    if (unknown := lost_share(counters, "unknown_characters")) >= TOLD_SHARE:
        found.append(
            f"{100 * unknown:.2f} % of the characters of {subject} become [UNK]. {advise_unknown(counters, lacking)}"
        )
    if (stripped := lost_share(counters, "stripped_characters")) >= TOLD_SHARE:
        found.append(
            f"{100 * stripped:.2f} % of the characters of {subject} lose a mark that is part of the letter (vowel "
            f"signs, tones, voicing), since the vocabulary is uncased. {CASED}"
        )
    return found


def lost_share(counters: Mapping[str, int], name: str) -> float:
    """Return a counter's share of the characters."""
    return min(1.0, counters.get(name, 0) / counters["characters"]) if counters.get("characters") else 0.0


def advise_unknown(counters: Mapping[str, int], lacking: str = LEARN) -> str:
    """Return what to do about unknown characters: about long words, if these are most of them."""
    if 2 * counters.get("long_word_characters", 0) > counters.get("unknown_characters", 0):
        return (
            f"They are in words of over {MAX_WORD_CHARACTERS} characters: text without spaces. Put spaces between its "
            f"words first, by a segmenter such as {SEGMENTERS}; or learn a vocabulary that cuts such words: "
            "vocabulary.long_words=characters."
        )
    return lacking


@cache
def _find_marked() -> tuple[re.Pattern, re.Pattern]:
    """Return patterns of the characters that have, or are, a mark that is part of a letter.

    Those beyond 16 bits have one of their own, since `re` looks up a set of others in one step, and these one by one.
    """
    return tuple(
        re.compile(f"[{''.join(c for c in map(chr, codes) if _is_marked(c))}]")
        for codes in (range(0x80, 0x10000), range(0x10000, 0x20000))
    )  # type: ignore[return-value]  # of two


def _is_marked(character: str) -> bool:
    return character in _CYRILLIC or any(map(_is_letter_mark, unicodedata.normalize("NFD", character)))


def _is_letter_mark(character: str) -> bool:
    if character in _VIETNAMESE:
        return True
    code = ord(character)
    return unicodedata.category(character) == "Mn" and not any(first <= code <= last for first, last in _ACCENTS)
