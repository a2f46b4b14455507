"""WordPiece tokenizer: text to ids and back."""

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
    """WordPiece tokenizer: greedy longest match, as in google-research/bert.

    Special pieces written out in a text are not protected, as in the original: "[MASK]" is three words. An instance
    caches the words that it has seen, with adjacent marks, since text repeats its words. It is picklable.

    Args:
        pieces: the vocabulary, in the order of ids.
        cased: keep case and accents.
    Raises:
        ValueError: `pieces` is not a vocabulary.
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
    def strips_accents(self) -> bool:
        """Whether accents are dropped."""
        return not self.cased

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
        """Return the ids of a word, which do not depend on what precedes it."""
        return self.encode(word)

    def encode_with_offsets(self, text: str) -> Offsets:
        """Return the ids of a text and the start and end of each piece; see `offsets.encode_with_offsets`."""
        return encode_with_offsets(self, text)

    def append(self, text: str, piece: str) -> str:
        """Append a piece to a text; a continuation joins the last word."""
        return text.rstrip() + piece.removeprefix(CONTINUATION) if piece.startswith(CONTINUATION) else text + piece

    def write(self, folder: Path) -> None:
        """Write `vocab.txt`."""
        write_vocabulary(folder / VOCABULARY_FILE, self.pieces)

    def decode(self, ids: Iterable[int], skip_special: bool = False) -> str:
        """Join pieces into words, and words by spaces. Case, accents and spacing are not restored."""
        skipped = self.special_ids if skip_special else ()
        pieces = [self.pieces[piece_id] for piece_id in ids if piece_id not in skipped]
        return " ".join(pieces).replace(f" {CONTINUATION}", "")


@lru_cache(maxsize=4)
def _restore_tokenizer(pieces: tuple[str, ...], cased: bool) -> WordPieceTokenizer:
    """Unpickle equal tokenizers as one instance: a Beam worker is sent one for each step of a pipeline."""
    return WordPieceTokenizer(pieces, cased)


class _TextIds(dict):
    """Cache of the ids of text between two spaces, such as `word,"`, of which a few hundred thousand are seen.

    Normalisation never looks past whitespace, so each is normalised on its own.
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
