"""Byte-level BPE, learned from word counts by `tokenizers` and written as a `tokenizer.json`.

Text is divided as in GPT-2: at spaces, and where letters, digits and other characters meet. Each part, with the space
before it, becomes bytes that are written as printable characters (`Ġ` for the space), so any text has tokens and
nothing becomes [UNK]. Sources: Radford et al. 2019, section 2.2; Sennrich et al. 2016, arXiv:1508.07909, algorithm 1.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as FastTokenizer

from keras_bert_flow.text.tokenizers.loaded import LoadedTokenizer
from keras_bert_flow.text.vocabulary import FEWEST_BYTE_PIECES, SPECIAL_PIECES

_MIN_COUNT = 2  # of a pair that is merged: one seen once hardly ever recurs in other text
# Words that the trainer is given: it takes texts and counts their words itself, at about a million a second.
MAX_TRAINED_WORDS = 20_000_000
_REPEATED = 1_000  # times that a word is repeated in a text


class BytePieces:
    """Divide text into words for byte-level BPE.

    Args:
        cased: whether case is kept.
    """

    strips_accents = False

    def __init__(self, cased: bool):
        form = normalizers.NFC()
        self.normalizer = form if cased else normalizers.Sequence([form, normalizers.Lowercase()])
        # A word has the same tokens at the start of a sentence as inside it.
        self.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)

    def split(self, text: str) -> list[str]:
        """Return the parts of a text between its spaces."""
        return [part for part in text.split(" ") if part]

    def __call__(self, part: str) -> list[str]:
        """Return the words of a part or of a text, each written as in the vocabulary, with its space."""
        return [word for word, _ in self.pre_tokenizer.pre_tokenize_str(self.normalizer.normalize_str(part))]


def learn_bpe(word_counts: Mapping[str, int], size: int, cased: bool) -> LoadedTokenizer:
    """Learn a byte-level BPE vocabulary of exactly `size` pieces.

    The pair of neighbouring pieces that occurs most often is merged, again and again, with ties broken by the ids of
    the pair; a pair seen once is not. The special pieces come first, as in a `vocab.txt`, then the 256 bytes, then the
    merged pieces in the order in which they were learned. If there are too few pairs, `[unused0]`, `[unused1]`, ...
    follow. The result depends on the counts alone. Of more than 20 million words, all counts are divided by the same
    number, and words whose count rounds to 0 are left out.

    Args:
        word_counts: count of each word, written as by `BytePieces`.
        size: number of pieces, special ones included.
        cased: whether the words were counted with their case.
    Raises:
        ValueError: `size` is too small for the bytes.
    """
    if size < FEWEST_BYTE_PIECES:
        raise ValueError(
            f"`size` must have room for {len(SPECIAL_PIECES)} special pieces and 256 bytes. Received: {size}. Use "
            f"{FEWEST_BYTE_PIECES} or more."
        )
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=_MIN_COUNT,
        special_tokens=list(SPECIAL_PIECES),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    learner = FastTokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # no word contains a space
    learner.train_from_iterator(_repeat(word_counts), trainer)
    model = json.loads(learner.to_str())["model"]
    ids: dict[str, int] = model["vocab"]
    ids |= {f"[unused{number}]": len(ids) + number for number in range(size - len(ids))}
    return _make_tokenizer(ids, [(first, second) for first, second in model["merges"]], cased)


def _repeat(word_counts: Mapping[str, int]) -> Iterator[str]:
    """Yield texts that contain each word as often as it counts."""
    words = sum(word_counts.values())
    part = max(1.0, words / MAX_TRAINED_WORDS)
    for word in sorted(word_counts):
        left = int(word_counts[word] / part + 0.5)
        while left > 0:
            yield " ".join([word] * min(left, _REPEATED))
            left -= _REPEATED


def _make_tokenizer(ids: dict[str, int], merges: list[tuple[str, str]], cased: bool) -> LoadedTokenizer:
    tokenizer, words = FastTokenizer(models.BPE(ids, merges)), BytePieces(cased)
    tokenizer.normalizer, tokenizer.pre_tokenizer = words.normalizer, words.pre_tokenizer
    cls, sep, mask = SPECIAL_PIECES[2:]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{cls}:0 $A:0 {sep}:0",
        pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
        special_tokens=[(piece, ids[piece]) for piece in (cls, sep)],
    )
    tokenizer.decoder = decoders.ByteLevel()
    # As in ModernBERT, the mask takes the space before it, which the piece in its place has as well.
    tokenizer.add_special_tokens([AddedToken(piece, lstrip=piece == mask, special=True) for piece in SPECIAL_PIECES])
    names = {f"{piece[1:-1].lower()}_token": piece for piece in SPECIAL_PIECES}
    settings: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "add_prefix_space": True} | names
    return LoadedTokenizer(tokenizer.to_str(pretty=True), settings)
