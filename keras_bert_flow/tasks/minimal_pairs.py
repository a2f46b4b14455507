"""Read minimal pairs: an acceptable and an unacceptable sentence that differ in one respect, in the format of BLiMP.

Source: Warstadt et al. 2020, "BLiMP: The Benchmark of Linguistic Minimal Pairs for English"; arXiv:1912.00582.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from keras_bert_flow.tasks.formats.rows import ANY_PACKING, abridge, read_objects
from keras_bert_flow.text.tokenizers.tokenizer import Tokenizer

NUM_SPECIAL = 2  # [CLS] and [SEP]
_GOOD, _BAD, _PHENOMENON = "sentence_good", "sentence_bad", "UID"
# Grouping of pairs → field of a line that names the group; only the first is required.
GROUPINGS = {"phenomena": _PHENOMENON, "linguistics_terms": "linguistics_term", "fields": "field"}


@dataclass(frozen=True)
class MinimalPair:
    """Two sentences, the first of which is acceptable.

    Attributes:
        groups: name of the pair's group in each of `GROUPINGS`; None where the line has none.
        place: file and row, for messages.
    """

    good: str
    bad: str
    groups: Mapping[str, str | None]
    place: str


@dataclass(frozen=True)
class EncodedPairs:
    """Minimal pairs with their encoded sentences.

    Attributes:
        pairs: as they were read.
        sentences: int32, (length,) each, [CLS] and [SEP] included. Each distinct token sequence occurs once, so that
            equal sentences have equal scores.
        good, bad: int, (pairs,). Index of each pair's sentences.
    """

    pairs: Sequence[MinimalPair]
    sentences: Sequence[np.ndarray]
    good: np.ndarray
    bad: np.ndarray


def read_minimal_pairs(path: str | Path, limit: int | None = None) -> list[MinimalPair]:
    """Read JSON lines with `sentence_good`, `sentence_bad`, `UID`, and possibly `field` and `linguistics_term`.

    Args:
        path: .jsonl, possibly compressed: .gz, .bz2, .xz, .zst.
        limit: keep only this many pairs of each phenomenon, the first ones; all lines are checked.
    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is damaged or has no pairs, or a line is not such a pair; the message names the row.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"`limit` must be at least 1. Received: limit={limit}. Leave it out for all pairs.")
    pairs, counts = [], Counter[str | None]()
    for number, fields in read_objects(path, ANY_PACKING):
        pair = _make_pair(f"{path}, row {number}", fields)
        phenomenon = pair.groups["phenomena"]
        counts[phenomenon] += 1
        if limit is None or counts[phenomenon] <= limit:
            pairs.append(pair)
    if not pairs:
        raise ValueError(f"There must be a minimal pair to score. Received: {path}, with none. Check the file.")
    return pairs


def encode_pairs(tokenizer: Tokenizer, pairs: Sequence[MinimalPair], max_positions: int) -> EncodedPairs:
    """Encode both sentences of each pair.

    Args:
        max_positions: most tokens that the model reads, [CLS] and [SEP] included.
    Raises:
        ValueError: a sentence has no tokens, or more than the model reads.
    """
    places: dict[bytes, int] = {}
    sentences: list[np.ndarray] = []
    found = np.zeros((len(pairs), 2), np.int64)
    for number, pair in enumerate(pairs):
        for column, (name, text) in enumerate(((_GOOD, pair.good), (_BAD, pair.bad))):
            ids = tokenizer.encode(text)
            _check_length(f"{pair.place}: `{name}`", len(ids), max_positions)
            ids = np.array([tokenizer.cls_id, *ids, tokenizer.sep_id], np.int32)
            found[number, column] = places.setdefault(ids.tobytes(), len(sentences))
            if found[number, column] == len(sentences):
                sentences.append(ids)
    return EncodedPairs(pairs, sentences, good=found[:, 0], bad=found[:, 1])


def _make_pair(place: str, fields: Mapping[str, Any]) -> MinimalPair:
    for name in (_GOOD, _BAD, _PHENOMENON):
        if name not in fields:
            raise ValueError(
                f"{place}: a minimal pair must have {_GOOD}, {_BAD} and {_PHENOMENON}. Received: no {name}. Fields "
                f"here: {abridge(fields)}."
            )
    for name in (name for name in (_GOOD, _BAD, *GROUPINGS.values()) if name in fields):
        # JSON can encode a lone surrogate.
        text = fields[name]
        if not isinstance(text, str) or not text.strip() or any("\ud800" <= letter <= "\udfff" for letter in text):
            raise ValueError(
                f"{place}: `{name}` must be text. Received: {abridge([ascii(text)])}. Correct the line, or "
                "leave it out."
            )
    groups = {grouping: fields.get(name) for grouping, name in GROUPINGS.items()}
    return MinimalPair(fields[_GOOD], fields[_BAD], groups, place)


def _check_length(what: str, tokens: int, max_positions: int) -> None:
    if not tokens:
        raise ValueError(
            f"{what} must have at least one token. Received: none, only characters that BERT leaves out. Correct it."
        )
    if tokens + NUM_SPECIAL > max_positions:
        raise ValueError(
            f"{what} must fit the model's {max_positions} positions, [CLS] and [SEP] included. Received: "
            f"{tokens + NUM_SPECIAL} tokens. Shorten the sentence, leave out the line, or choose another model."
        )
