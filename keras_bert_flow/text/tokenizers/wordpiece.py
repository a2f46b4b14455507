"""WordPiece tokenizer: text to ids and back, added tokens, and the place of each piece in the original text."""

import json
import re
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, chain
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, normalizers
from tokenizers import Tokenizer as FastTokenizer
from tokenizers.models import WordLevel, WordPiece

from keras_bert_flow.console.terminal import abridge
from keras_bert_flow.text.tokenizers.normalization import (
    MAX_REMEMBERED_CODES,
    MAX_REMEMBERED_WORDS,
    Remembered,
    clean_text,
    normalize_text,
    replace_surrogates,
)
from keras_bert_flow.text.tokenizers.tokenizer import Offsets, Tokenizer
from keras_bert_flow.text.vocabulary import (
    CONTINUATION,
    MAX_WORD_CHARACTERS,
    SPECIAL_PIECES,
    VOCABULARY_FILE,
    check_vocabulary,
    read_vocabulary,
    write_vocabulary,
)

SETTINGS = "tokenizer_config.json"
FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")  # of an added token
# Text between two spaces. `clean_text` drops these control characters, which `\s` matches as spaces, and joins what is
# around them.
CHUNK = re.compile(r"[\S\x0b\x0c\x1c-\x1f\x85]+")
_REST = "[UNK]"  # what the splitter makes of the text between added tokens

Spans = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]  # ids, starts and ends of a chunk's pieces


@dataclass(frozen=True)
class AddedPiece:
    """A token as `added_tokens` of a `tokenizer.json` describes it; the fields are those of `tokenizers.AddedToken`."""

    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = True
    special: bool = False

    @classmethod
    def of(cls, value: Any, source: str, special: bool = False) -> "AddedPiece":
        """Read one from a file: its text, or an object with its text and flags.

        Raises:
            ValueError: it is neither.
        """
        fields = {"content": value} if isinstance(value, str) else value
        if isinstance(fields, Mapping) and isinstance(content := fields.get("content"), str) and content:
            is_special = fields.get("special", special)
            flags: dict[str, Any] = {"special": is_special, "normalized": not is_special}
            flags |= {name: fields[name] for name in FLAGS if name in fields}
            if all(isinstance(flag, bool) for flag in flags.values()):
                return cls(content, **flags)
        raise ValueError(
            f"{source}: an added token must be a text, or have a `content` and flags. Received: "
            f"{abridge(ascii(value))}. Copy or save it again."
        )

    def describe(self) -> dict[str, Any]:
        """Return the token as `tokenizer_config.json` holds it."""
        return {"content": self.content} | {name: getattr(self, name) for name in FLAGS}

    def make(self) -> AddedToken:
        """Return the token for `tokenizers`."""
        return AddedToken(self.content, **{name: getattr(self, name) for name in FLAGS})


@dataclass(frozen=True)
class WordRules:
    """What a WordPiece tokenizer does apart from its vocabulary and its case.

    Attributes:
        strip_accents: drop accents; None: if the tokenizer is uncased, as in google-research/bert.
        split_han: every Han character is a word of its own, as in google-research/bert.
        added: tokens that are found in a text before it is split into words, in the order of their ids.
    """

    strip_accents: bool | None = None
    split_han: bool = True
    added: tuple[AddedPiece, ...] = ()

    def make_normalizer(self, cased: bool) -> normalizers.BertNormalizer:
        """Return the normaliser of `tokenizers` with these rules."""
        return normalizers.BertNormalizer(
            handle_chinese_chars=self.split_han, strip_accents=self.strip_accents, lowercase=not cased
        )

    def describe(self) -> dict[str, Any]:
        """Return what differs from google-research/bert, for keys and manifests; empty if nothing does."""
        rules: dict[str, Any] = {} if self.strip_accents is None else {"strip_accents": self.strip_accents}
        rules |= {} if self.split_han else {"tokenize_chinese_chars": False}
        return rules | ({"added_tokens": [piece.describe() for piece in self.added]} if self.added else {})


PLAIN = WordRules()  # those of google-research/bert


class WordPieceTokenizer(Tokenizer):
    """WordPiece tokenizer: greedy longest match, as in google-research/bert.

    Special pieces written out in a text are not protected, as in the original: "[MASK]" is three words. An instance
    caches the words that it has seen, with adjacent marks, since text repeats its words. It is picklable.

    Args:
        vocabulary: the pieces of the `vocab.txt`, in the order of ids.
        cased: keep case and accents.
        rules: what else differs from google-research/bert. Added tokens that `vocabulary` lacks get the next ids.
    Raises:
        ValueError: `vocabulary` is not one.
    Source: google-research/bert, tokenization.py, `FullTokenizer`.
    Example:
        >>> tokenizer = kbf.WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "film", "##s"])
        >>> tokenizer("Films").tolist()
        [5, 6]
        >>> tokenizer.decode([5, 6])
        'films'
    """

    separators = 1
    mask_token = "[MASK]"

    def __init__(self, vocabulary: Iterable[str], cased: bool = False, rules: WordRules = PLAIN):
        self.vocabulary = tuple(vocabulary)
        self.cased = cased
        follows = rules.strip_accents is (not cased)
        self.rules = replace(rules, strip_accents=None) if follows else rules
        check_vocabulary(self.vocabulary)
        self.pieces = tuple(dict.fromkeys((*self.vocabulary, *(piece.content for piece in rules.added))))
        ids = {piece: piece_id for piece_id, piece in enumerate(self.pieces)}
        self.special_ids = tuple(ids[piece] for piece in SPECIAL_PIECES)
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = self.special_ids
        self.starts_word = np.array([not piece.startswith(CONTINUATION) for piece in self.pieces])  # (vocabulary,)
        self._model = WordPiece(
            {piece: ids[piece] for piece in self.vocabulary},
            unk_token="[UNK]",
            max_input_chars_per_word=MAX_WORD_CHARACTERS,
            continuing_subword_prefix=CONTINUATION,
        )
        # Ids of words; and of text between two spaces, such as `word,"`, of which a few hundred thousand are seen.
        self._word_ids = Remembered(self._split_word, MAX_REMEMBERED_WORDS)
        self._ids = Remembered(self._split_chunk, MAX_REMEMBERED_WORDS)
        self._spans = Remembered(self._trace_chunk, MAX_REMEMBERED_WORDS)
        self._kept = Remembered(self._count_kept, MAX_REMEMBERED_CODES)
        self._splitter = AddedSplitter(rules, cased, ids) if rules.added else None

    @classmethod
    def from_file(cls, path: str | Path, cased: bool = False) -> "WordPieceTokenizer":
        """Read a `vocab.txt` alone; `files.read_tokenizer_file` also reads what the files beside it say."""
        return cls(read_vocabulary(path), cased)

    def __reduce__(self):
        return _restore_tokenizer, (self.vocabulary, self.cased, self.rules)

    @property
    def strips_accents(self) -> bool:
        """Whether accents are dropped."""
        return not self.cased if self.rules.strip_accents is None else self.rules.strip_accents

    def normalize(self, text: str) -> str:
        """Return the words of a text, separated by single spaces; see `normalize_text`."""
        return normalize_text(text, self.cased, self.rules.strip_accents, self.rules.split_han)

    def encode(self, text: str) -> np.ndarray:
        """Return the ids of a text, int32, without [CLS] and [SEP]."""
        return np.fromiter(self._find_ids(text), dtype=np.int32)  # (tokens,)

    def encode_into(self, ids: array, text: str) -> int:
        """Append the ids of a text to an `array("i")` and return how many; faster than `encode` for short texts."""
        before = len(ids)
        ids.extend(self._find_ids(text))
        return len(ids) - before

    def _find_ids(self, text: str) -> Iterable[int]:
        if self._splitter is None:
            return self.encode_words(text)
        parts = self._splitter.split(text)
        return chain.from_iterable(
            self.encode_words(text[start:end]) if piece_id is None else (piece_id,) for start, end, piece_id in parts
        )

    def encode_words(self, text: str) -> Iterable[int]:
        """Return the ids of a text in which added tokens are not looked for."""
        return chain.from_iterable(map(self._ids.__getitem__, clean_text(text).split()))

    def _split_chunk(self, chunk: str) -> tuple[int, ...]:
        # Normalisation never looks past whitespace, so each chunk is normalised on its own.
        return tuple(chain.from_iterable(map(self._word_ids.__getitem__, self.normalize(chunk).split())))

    def _split_word(self, word: str) -> tuple[int, ...]:
        return tuple(token.id for token in self._model.tokenize(word))

    def encode_with_offsets(self, text: str) -> Offsets:
        """Return the ids of a text, and where in the original text each piece begins and ends.

        `text[start:end]` is the source of a piece, as written: with its accents, even as separate characters, and with
        whatever was dropped inside it; what was dropped between two pieces is in neither. If a character gives several
        pieces, such as a Hangul syllable that is folded into letters, each has the whole character. The marks of one
        letter are taken in the order written, though Unicode's canonical order may differ.

        Returns:
            The ids, the same as `encode(text)`, the starts and the ends, in characters of `text`; int32, (pieces,)
            each. Starts and ends are non-decreasing.
        """
        if self._splitter is None:
            return self._trace_words(text)
        found = []
        for start, end, piece_id in self._splitter.split(text):
            if piece_id is None:
                ids, starts, ends = self._trace_words(text[start:end])
                found.append((ids, starts + start, ends + start))
            else:  # without the spaces that it takes from the text around it
                part = text[start:end]
                first, last = start + len(part) - len(part.lstrip()), end - len(part) + len(part.rstrip())
                ids, starts, ends = (np.array([value], np.int32) for value in (piece_id, first, last))
                found.append((ids, starts, ends))
        ids, starts, ends = (np.concatenate([np.zeros(0, np.int32), *parts]) for parts in zip(*found, strict=True))
        return ids, starts, ends

    def _trace_words(self, text: str) -> Offsets:
        """Return the ids, starts and ends of a text in which added tokens are not looked for."""
        matches = list(CHUNK.finditer(text))
        spans = [self._spans[match.group()] for match in matches]
        ids, starts, ends = (
            np.fromiter(chain.from_iterable(map(itemgetter(part), spans)), dtype=np.int32) for part in range(3)
        )
        places = np.array([match.start() for match in matches], dtype=np.int32)
        places = places.repeat([len(span[0]) for span in spans])  # (pieces,)
        return ids, starts + places, ends + places

    def _trace_chunk(self, chunk: str) -> Spans:
        """Return the pieces of a chunk, which is text between two spaces."""
        ids = tuple(self.encode_words(chunk))
        firsts, lasts = self._trace_characters(chunk)
        ends = list(accumulate(self._measure(chunk, ids)))  # in characters of the normalised chunk, without spaces
        starts = [0, *ends[:-1]]
        return ids, tuple(firsts[start] for start in starts[: len(ids)]), tuple(lasts[end - 1] for end in ends)

    def _measure(self, chunk: str, ids: tuple[int, ...]) -> list[int]:
        """Return the number of characters of each piece; [UNK] has those of its whole word."""
        lengths = [len(self.pieces[piece_id].removeprefix(CONTINUATION)) for piece_id in ids]
        if self.unk_id in ids:
            words = iter(self.normalize(chunk).split())
            for place, piece_id in enumerate(ids):
                word = next(words) if self.starts_word[piece_id] else ""
                if piece_id == self.unk_id:
                    lengths[place] = len(word)
        return lengths

    def _trace_characters(self, chunk: str) -> tuple[list[int] | range, list[int] | range]:
        """Return the start and end in a chunk of the source of each character of the normalised chunk."""
        if chunk.isascii() and chunk.isprintable():  # nothing is dropped, and each character gives one
            return range(len(chunk)), range(1, len(chunk) + 1)
        firsts: list[int] = []
        lasts: list[int] = []
        for place, character in enumerate(chunk):
            count = self._kept[character]
            if count > 0:
                firsts += [place] * count
                lasts += [place + 1] * count
            elif count < 0 and lasts:
                lasts[-1] = place + 1
        return firsts, lasts

    def _count_kept(self, character: str) -> int:
        """Return how many characters normalisation makes of one: 0 if it is dropped, -1 for an accent that is stripped.

        Neighbouring characters do not change that: they only affect the form of the small sigma, and the order of
        marks.
        """
        count = len(self.normalize(character).replace(" ", ""))
        return -1 if count == 0 and clean_text(character) else count

    def append(self, text: str, piece: str) -> str:
        """Append a piece to a text; a continuation joins the last word."""
        return text.rstrip() + piece.removeprefix(CONTINUATION) if piece.startswith(CONTINUATION) else text + piece

    def write(self, folder: Path) -> None:
        """Write `vocab.txt`, and what it does not hold; see `write_rules`."""
        write_vocabulary(folder / VOCABULARY_FILE, self.vocabulary)
        self.write_rules(folder)

    def write_rules(self, folder: Path) -> None:
        """Write a `tokenizer_config.json`, if google-research/bert does not do all that this tokenizer does."""
        if self.rules.describe():
            content = json.dumps(self.describe_settings(), indent=2, ensure_ascii=False) + "\n"
            (folder / SETTINGS).write_text(content, encoding="utf-8")

    def describe(self) -> dict[str, Any]:
        """Return what makes the ids of a text apart from the pieces; see `files.find_difference`."""
        return {"kind": "WordPiece"} | self.describe_settings() | {"strip_accents": self.strips_accents}

    def describe_settings(self) -> dict[str, Any]:
        """Return the content of a `tokenizer_config.json`, by the names that `transformers` has for it."""
        fields: dict[str, Any] = {
            "tokenizer_class": "BertTokenizer",
            "do_lower_case": not self.cased,
            "tokenize_chinese_chars": self.rules.split_han,
            "strip_accents": self.rules.strip_accents,
        }
        ids = {piece: piece_id for piece_id, piece in enumerate(self.pieces)}
        added = {str(ids[piece.content]): piece.describe() for piece in self.rules.added}
        return fields | ({"added_tokens_decoder": added} if added else {})

    def decode(self, ids: Iterable[int], skip_special: bool = False) -> str:
        """Join pieces into words, and words by spaces. Case, accents and spacing are not restored."""
        skipped = self.special_ids if skip_special else ()
        pieces = [self.pieces[piece_id] for piece_id in ids if piece_id not in skipped]
        return " ".join(pieces).replace(f" {CONTINUATION}", "")


@lru_cache(maxsize=4)
def _restore_tokenizer(vocabulary: tuple[str, ...], cased: bool, rules: WordRules) -> WordPieceTokenizer:
    """Unpickle equal tokenizers as one instance: a Beam worker is sent one for each step of a pipeline."""
    return WordPieceTokenizer(vocabulary, cased, rules)


class AddedSplitter:
    """Find added tokens in a text, by the rules of `tokenizers`.

    Args:
        rules: the tokens, none of which is one of BERT's five special ones, and how text is normalised, since
            `normalized` tokens are found in normalised text.
        cased: the tokenizer keeps case.
        ids: piece → id.
    """

    def __init__(self, rules: WordRules, cased: bool, ids: Mapping[str, int]):
        self._tokenizer = FastTokenizer(WordLevel({_REST: 0}, unk_token=_REST))
        self._tokenizer.normalizer = rules.make_normalizer(cased)
        self._tokenizer.add_tokens([piece.make() for piece in rules.added])
        numbers = self._tokenizer.get_vocab(with_added_tokens=True)
        self._ids = {numbers[piece.content]: ids[piece.content] for piece in rules.added}

    def split(self, text: str) -> Iterator[tuple[int, int, int | None]]:
        """Yield the start and end of each part of a text with its id; None for ordinary text between added tokens."""
        encoding = self._tokenizer.encode(replace_surrogates(text), add_special_tokens=False)
        last = 0
        for number, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if number in self._ids:
                if start > last:
                    yield last, start, None
                yield start, end, self._ids[number]
                last = end
        if last < len(text):
            yield last, len(text), None
