"""Turn text into WordPiece ids and back."""

from array import array
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import chain
from pathlib import Path

import numpy as np
from tokenizers.models import WordPiece

from keras_bert_flow.text.tokenizers.normalization import (
    MAX_REMEMBERED_CHARACTERS,
    MAX_REMEMBERED_WORDS,
    clean_text,
    normalize_text,
)
from keras_bert_flow.text.tokenizers.offsets import encode_with_offsets
from keras_bert_flow.text.tokenizers.tokenizer import Offsets
from keras_bert_flow.text.vocabulary.vocab_file import (
    CONTINUATION,
    SPECIAL_PIECES,
    VOCABULARY_FILE,
    check_vocabulary,
    read_vocabulary,
    write_vocabulary,
)

MAX_WORD_CHARACTERS = 200  # longer words are [UNK]: google-research/bert `WordpieceTokenizer`; others use 100


class WordPieceTokenizer:
    """Encode text by the greedy longest match of google-research/bert.

    Special pieces written out in a text get no protection, as in the original: "[MASK]" is three words. An instance
    remembers the words it has met, with the marks around them: text repeats its words. It can be pickled.

    Args:
        pieces: the vocabulary, in the order of ids.
        cased: keep case and accents.
    Raises:
        ValueError: `pieces` is no vocabulary.
    Source: google-research/bert, tokenization.py, `FullTokenizer`.
    """

    separators = 1
    mask_token = "[MASK]"

    def __init__(self, pieces: Iterable[str], cased: bool = False):
        self.pieces = tuple(pieces)
        self.cased = cased
        check_vocabulary(self.pieces)
        ids = {piece: piece_id for piece_id, piece in enumerate(self.pieces)}
        self.special_ids = tuple(ids[piece] for piece in SPECIAL_PIECES)
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = self.special_ids
        self.starts_word = np.array([not piece.startswith(CONTINUATION) for piece in self.pieces])  # (vocabulary,)
        self._ids = _TextIds(ids, cased)

    @classmethod
    def from_file(cls, path: str | Path, cased: bool = False) -> "WordPieceTokenizer":
        """Read a `vocab.txt`."""
        return cls(read_vocabulary(path), cased)

    def __reduce__(self):
        return _restore_tokenizer, (self.pieces, self.cased)

    @property
    def vocabulary_size(self) -> int:
        return len(self.pieces)

    def encode(self, text: str) -> np.ndarray:
        """Return the ids of a text, int32, without [CLS] and [SEP]."""
        ids = chain.from_iterable(map(self._ids.__getitem__, clean_text(text).split()))
        return np.fromiter(ids, dtype=np.int32)  # (tokens,)

    def encode_into(self, ids: array, text: str) -> int:
        """Append the ids of a text to an `array("i")` and return how many; faster than `encode` for short texts."""
        before = len(ids)
        ids.extend(chain.from_iterable(map(self._ids.__getitem__, clean_text(text).split())))
        return len(ids) - before

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return the ids of each text."""
        return [self.encode(text) for text in texts]

    def encode_word(self, word: str) -> np.ndarray:
        """Return the ids of a word; what stands before it makes no difference."""
        return self.encode(word)

    def encode_with_offsets(self, text: str) -> Offsets:
        """Return the ids of a text and where in it each piece begins and ends; see `offsets.encode_with_offsets`."""
        return encode_with_offsets(self, text)

    def append(self, text: str, piece: str) -> str:
        """Return a text with a piece behind it; a continuation joins the word before."""
        return text.rstrip() + piece.removeprefix(CONTINUATION) if piece.startswith(CONTINUATION) else text + piece

    def write(self, folder: Path) -> None:
        """Write `vocab.txt`."""
        write_vocabulary(folder / VOCABULARY_FILE, self.pieces)

    def decode(self, ids: Iterable[int], skip_special: bool = False) -> str:
        """Join pieces into words, words by spaces. Case, accents and spacing are not to be had back."""
        skipped = self.special_ids if skip_special else ()
        pieces = [self.pieces[piece_id] for piece_id in ids if piece_id not in skipped]
        return " ".join(pieces).replace(f" {CONTINUATION}", "")


@lru_cache(maxsize=4)
def _restore_tokenizer(pieces: tuple[str, ...], cased: bool) -> WordPieceTokenizer:
    """Give all copies that reach a process one tokenizer: a Beam worker is sent one for each step of a pipeline."""
    return WordPieceTokenizer(pieces, cased)


class _TextIds(dict):
    """The ids of what stands between two spaces, such as `word,"`: mostly a word, so a few hundred thousand are met.

    Nothing in normalisation looks past whitespace, so each is normalised on its own.
    """

    def __init__(self, ids: dict[str, int], cased: bool):
        super().__init__()
        self._cased = cased
        self._word_ids = _WordIds(ids)

    def __missing__(self, text: str) -> tuple[int, ...]:
        words = normalize_text(text, self._cased).split()
        ids = tuple(chain.from_iterable(map(self._word_ids.__getitem__, words)))
        if len(text) <= MAX_REMEMBERED_CHARACTERS and len(self) < MAX_REMEMBERED_WORDS:
            self[text] = ids
        return ids


class _WordIds(dict):
    """The ids of each word, worked out when it is first met. Text repeats its words, so few are."""

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
