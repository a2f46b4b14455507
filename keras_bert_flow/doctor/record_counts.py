"""Count the contents of pre-training records in batches, and check each record against its expected layout."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_bert_flow.doctor.layout import Layout
from keras_bert_flow.doctor.measures import Repeats
from keras_bert_flow.records.schema import FEATURE_KINDS, decode_record

Features = Mapping[str, np.ndarray]
TOKEN_FEATURES = ("input_ids", "input_mask", "segment_ids")
PREDICTION_FEATURES = ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights")
LABEL = "next_sentence_labels"
FAULTS = ("decoding", "shapes", "ids", "padding", "special tokens", "segments", "predictions", "labels")


class RecordCounts:
    """Sums over records; `add` takes them one by one and processes `rows` of them at a time.

    Attributes:
        totals: sums by name.
        faults: number of records by fault, one of FAULTS.
        first_fault: location of the first record with each fault.
        lengths: (sequence_length + 1,). Number of records by number of tokens.
        repeats: repeats of whole records.
    """

    def __init__(self, layout: Layout, rows: int = 1000):
        self.layout = layout
        self.totals: Counter = Counter()
        self.faults: Counter = Counter()
        self.first_fault: dict[str, str] = {}
        self.repeats = Repeats()
        self._shape: tuple[Any, Any] = (layout.sequence_length, layout.max_predictions)  # None until it is seen
        self.lengths = np.zeros((layout.sequence_length or 0) + 1, np.int64)
        self._rows = rows
        self._waiting: list[tuple[str, Features]] = []

    def add(self, record: bytes, place: str) -> None:
        """Add a record, located at `place`."""
        self.repeats.add(record)
        self.totals["records"] += 1
        try:
            features = decode_record(record)
        except ValueError:
            self._note("decoding", place)
            return
        if not self._has_shape(features):
            self._note("shapes", place)
            return
        self._waiting.append((place, features))
        if len(self._waiting) == self._rows:
            self.flush()

    def flush(self) -> None:
        """Count the records that are still waiting."""
        if not self._waiting:
            return
        places = [place for place, _ in self._waiting]
        names = [name for name in FEATURE_KINDS if name in self._waiting[0][1]]
        batch = {name: np.stack([features[name] for _, features in self._waiting]) for name in names}
        self._waiting = []
        self._count(batch, places)

    def _has_shape(self, features: Features) -> bool:
        if None in self._shape:
            first = (len(features["input_ids"]), len(features["masked_lm_ids"]))
            self._shape = (self._shape[0] or first[0], self._shape[1] or first[1])
            self.lengths = np.zeros(self._shape[0] + 1, np.int64)
        length, predictions = self._shape
        return (
            all(len(features[name]) == length for name in TOKEN_FEATURES)
            and all(len(features[name]) == predictions for name in PREDICTION_FEATURES)
            and len(features.get(LABEL, (0,))) == 1
        )

    def _count(self, batch: Features, places: list[str]) -> None:
        ids, predicted = batch["input_ids"], batch["masked_lm_weights"] > 0  # (records, length), (records, predictions)
        lengths = np.count_nonzero(batch["input_mask"], axis=1)
        inside = np.arange(ids.shape[1]) < lengths[:, None]
        positions = np.clip(batch["masked_lm_positions"], 0, ids.shape[1] - 1)
        rows, columns = np.nonzero(predicted)
        chosen = positions[rows, columns]
        originals = ids.copy()
        originals[rows, chosen] = batch["masked_lm_ids"][rows, columns]
        pad, unknown, cls, sep, mask = self.layout.special_ids
        is_word = inside & (originals != cls) & (originals != sep)

        self.lengths += np.bincount(lengths, minlength=len(self.lengths))
        totals = {
            "counted": len(ids),
            "places": ids.size,
            "tokens": lengths.sum(),
            "words": is_word.sum(),
            "unknown_tokens": (is_word & (originals == unknown)).sum(),
            "positive_labels": batch[LABEL].sum() if LABEL in batch else 0,
            "ids_out_of_range": self._out_of_range(ids).sum() + self._out_of_range(batch["masked_lm_ids"]).sum(),
        }
        self.totals.update({name: int(number) for name, number in totals.items()})
        self._count_predictions(ids[rows, chosen], originals[rows, chosen], rows, chosen, lengths)
        wrong = {
            "ids": self._out_of_range(ids).any(1) | self._out_of_range(batch["masked_lm_ids"]).any(1),
            "padding": ((batch["input_mask"] != inside) | (~inside & (ids != 0))).any(1),
            "special tokens": ~self._has_special_tokens(originals, lengths),
            "segments": ~self._has_segments(batch["segment_ids"], originals, inside),
            "predictions": ~self._has_predictions(batch, predicted, lengths),
            "labels": ~self._has_label(batch),
        }
        for fault, is_wrong in wrong.items():
            for row in np.flatnonzero(is_wrong):
                self._note(fault, places[row])

    def _count_predictions(self, shown, originals, rows, positions, lengths) -> None:
        """Count masked, kept and replaced tokens; all but `lengths` are (chosen tokens,) of a batch."""
        is_hidden, is_kept = shown == self.layout.special_ids[4], shown == originals
        self.totals["masked_tokens"] += len(shown)
        self.totals["hidden"] += int(np.count_nonzero(is_hidden))
        self.totals["kept"] += int(np.count_nonzero(is_kept & ~is_hidden))
        self.totals["replaced"] += int(np.count_nonzero(~is_hidden & ~is_kept))
        # Adjacent tokens may be of a span that was replaced by one draw; a run of them counts as its length squared.
        breaks = (np.diff(rows) != 0) | (np.diff(positions) != 1)
        runs = np.diff(np.concatenate([[0], np.flatnonzero(breaks) + 1, [len(shown)]]))
        self.totals["squared_runs"] += int((runs**2).sum())
        if self.layout.masked_fraction is not None:
            wanted = np.maximum(1, np.rint(lengths * self.layout.masked_fraction))  # halves to even, as in Python
            wanted = np.minimum(wanted, self._shape[1]).astype(np.int64)
            self.totals["wanted_predictions"] += int(wanted.sum())
            self.totals["over_predicted"] += int((np.bincount(rows, minlength=len(lengths)) > wanted).sum())

    def _out_of_range(self, ids: np.ndarray) -> np.ndarray:
        return (ids < 0) | (ids >= self.layout.vocabulary_size)

    def _has_special_tokens(self, originals: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Return for each record whether it is [CLS] ... [SEP], with one more [SEP] inside for pairs."""
        _, _, cls, sep, _ = self.layout.special_ids
        last = originals[np.arange(len(originals)), np.maximum(lengths - 1, 0)]
        inside = np.arange(originals.shape[1]) < lengths[:, None]
        separators = ((originals == sep) & inside).sum(1)
        is_alone = ((originals == cls) & inside).sum(1) == 1
        count_is_right = separators == 2 if self.layout.sentence_label else separators >= 1
        return (originals[:, 0] == cls) & (last == sep) & is_alone & count_is_right

    def _has_segments(self, segment_ids: np.ndarray, originals: np.ndarray, inside: np.ndarray) -> np.ndarray:
        """Return for each record whether its segment ids are right: 1 after the first [SEP] of a pair, 0 elsewhere."""
        if not self.layout.sentence_label:
            return (segment_ids == 0).all(1)
        first_sep = np.argmax(originals == self.layout.special_ids[3], axis=1)
        expected = inside & (np.arange(originals.shape[1]) > first_sep[:, None])
        has_both = (first_sep > 1) & (expected.sum(1) > 1)
        return (segment_ids == expected).all(1) & has_both

    def _has_predictions(self, batch: Features, predicted: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Return for each record whether its predictions are words, at ascending positions, followed by zeros."""
        positions, ids = batch["masked_lm_positions"], batch["masked_lm_ids"]
        count = predicted.sum(1)
        are_first = (predicted == (np.arange(predicted.shape[1]) < count[:, None])).all(1)
        are_words = ~np.isin(ids, [self.layout.special_ids[2], self.layout.special_ids[3]])
        are_inside = (positions > 0) & (positions < lengths[:, None] - 1) & are_words
        ascend = (np.diff(positions, axis=1) > 0) | ~predicted[:, 1:]
        is_filler = (positions == 0) & (ids == 0) & (batch["masked_lm_weights"] == 0)
        return (
            (count > 0) & are_first & (are_inside | ~predicted).all(1) & ascend.all(1) & (predicted | is_filler).all(1)
        )

    def _has_label(self, batch: Features) -> np.ndarray:
        if LABEL not in batch:
            return np.ones(len(batch["input_ids"]), bool)
        allowed = (0, 1) if self.layout.sentence_label else (0,)
        return np.isin(batch[LABEL][:, 0], allowed)

    def _note(self, fault: str, place: str) -> None:
        self.faults[fault] += 1
        self.first_fault.setdefault(fault, place)
