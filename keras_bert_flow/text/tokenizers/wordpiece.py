"""WordPiece tokenizer: text to ids and back."""

import json
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers.models import WordPiece

from keras_bert_flow.text.tokenizers.added import AddedSplitter, WordRules
from keras_bert_flow.text.tokenizers.normalization import (
    MAX_REMEMBERED_CHARACTERS,
    MAX_REMEMBERED_WORDS,
    clean_text,
    normalize_text,
)
from keras_bert_flow.text.tokenizers.tokenizer import Offsets, Tokenizer, encode_with_offsets
from keras_bert_flow.text.vocabulary.vocab_file import (
    CONTINUATION,
    SPECIAL_PIECES,
    VOCABULARY_FILE,
    check_vocabulary,
    read_vocabulary,
    write_vocabulary,
)

SETTINGS = "tokenizer_config.json"
PLAIN = WordRules()  # those of google-research/bert
MAX_WORD_CHARACTERS = 200  # longer words are [UNK]: google-research/bert `WordpieceTokenizer`; others use 100


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
        known = {piece: ids[piece] for piece in self.vocabulary}
        self._ids = _TextIds(known, self.normalize)
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

    @property
    def vocabulary_size(self) -> int:
        return len(self.pieces)

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

    def encode_words(self, text: str) -> tuple[int, ...]:
        """Return the ids of a text in which added tokens are not looked for."""
        return tuple(chain.from_iterable(map(self._ids.__getitem__, clean_text(text).split())))

    def _find_ids(self, text: str) -> Iterable[int]:
        if self._splitter is None:
            return chain.from_iterable(map(self._ids.__getitem__, clean_text(text).split()))
        parts = self._splitter.split(text)
        return chain.from_iterable(
            self.encode_words(text[start:end]) if piece_id is None else (piece_id,) for start, end, piece_id in parts
        )

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return the ids of each text."""
        return [self.encode(text) for text in texts]

    def encode_word(self, word: str) -> np.ndarray:
        """Return the ids of a word, which do not depend on what precedes it."""
        return self.encode(word)

    def encode_with_offsets(self, text: str) -> Offsets:
        """Return the ids of a text and the start and end of each piece; see `offsets.encode_with_offsets`."""
        if self._splitter is None:
            return encode_with_offsets(self, text)
        found = []
        for start, end, piece_id in self._splitter.split(text):
            if piece_id is None:
                ids, starts, ends = encode_with_offsets(self, text[start:end])
                found.append((ids, starts + start, ends + start))
            else:  # without the spaces that it takes from the text around it
                part = text[start:end]
                first, last = start + len(part) - len(part.lstrip()), end - len(part) + len(part.rstrip())
                ids, starts, ends = (np.array([value], np.int32) for value in (piece_id, first, last))
                found.append((ids, starts, ends))
        ids, starts, ends = (np.concatenate([np.zeros(0, np.int32), *parts]) for parts in zip(*found, strict=True))
        return ids, starts, ends

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


class _TextIds(dict):
    """Cache of the ids of text between two spaces, such as `word,"`, of which a few hundred thousand are seen.

    Normalisation never looks past whitespace, so each is normalised on its own.
    """

    def __init__(self, ids: dict[str, int], normalize: Callable[[str], str]):
        super().__init__()
        self._normalize = normalize
        self._word_ids = _WordIds(ids)

    def __missing__(self, text: str) -> tuple[int, ...]:
        words = self._normalize(text).split()
        ids = tuple(chain.from_iterable(map(self._word_ids.__getitem__, words)))
        if len(text) <= MAX_REMEMBERED_CHARACTERS and len(self) < MAX_REMEMBERED_WORDS:
            self[text] = ids
        return ids


class _WordIds(dict):
    """Cache of the ids of each word. Text repeats its words, so few are computed."""

    def __init__(self, ids: dict[str, int]):
        super().__init__()
        self._model = WordPiece(
            ids,
            unk_token="[UNK]",
            max_input_chars_per_word=MAX_WORD_CHARACTERS,
            continuing_subword_prefix=CONTINUATION,
        )

    def __missing__(self, word: str) -> tuple[int, ...]:
        ids = tuple(token.id for token in self._model.tokenize(word))
        if len(word) <= MAX_REMEMBERED_CHARACTERS and len(self) < MAX_REMEMBERED_WORDS:
            self[word] = ids
        return ids
