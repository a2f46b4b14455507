"""Count the contents of records, check each against the expected layout, and judge the counts."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from keras_bert_flow.checks.findings import (
    Finding,
    Repeats,
    Verdict,
    chance_range,
    grade,
    judge,
    judge_lost,
    percent,
    share,
)
from keras_bert_flow.records.example import FEATURE_KINDS, SPAN_IDS, decode_record
from keras_bert_flow.records.tfrecord import check_records_config
from keras_bert_flow.text.masking import KEEP_SHARE, MASK_SHARE, number_spans
from keras_bert_flow.text.objectives import DEFAULT
from keras_bert_flow.text.objectives.objective import (
    MOST_MISTAKEN,
    NEAR_COPIES,
    SentenceLabel,
    find_objective,
    mistaken_share,
)
from keras_bert_flow.text.tokenizers.tokenizer import LEARN, advise_unknown
from keras_bert_flow.text.vocabulary import SPECIAL_PIECES

# Expected layout of the records of a folder, from its manifest and its vocabulary.


@dataclass(frozen=True)
class Layout:
    """What each record is checked against.

    Attributes:
        vocabulary_size: ids are below it.
        special_ids: ids of [PAD], [UNK], [CLS], [SEP] and [MASK].
        objective: its name; see `text.objectives.objective`.
        mask_unit: `token`; `word`, whose tokens are chosen together; or `span`, whose tokens are also replaced by one
            draw.
        masked_fraction: share of tokens to choose; None if not in the manifest.
        sequence_length: tokens of a record; None: those of the first record read.
        max_predictions: slots for predictions; None: those of the first record read.
        is_packed: whether a record may hold several texts.
    """

    vocabulary_size: int
    special_ids: tuple[int, ...]
    objective: str = DEFAULT
    mask_unit: str = "token"
    masked_fraction: float | None = None
    sequence_length: int | None = None
    max_predictions: int | None = None
    is_packed: bool = False

    @property
    def sentence_label(self) -> SentenceLabel | None:
        """The label of a pair; None if a record is one text."""
        return find_objective(self.objective).sentence_label


def make_layout(
    config: Mapping[str, Any], pieces: Sequence[str], special_pieces: Sequence[str] = SPECIAL_PIECES
) -> Layout:
    """Make a layout from the configuration in a manifest, which may be empty, and the pieces of the vocabulary.

    Args:
        special_pieces: spellings of [PAD], [UNK], [CLS], [SEP] and [MASK] in this vocabulary.
    Raises:
        ValueError: a special piece is missing, a value of the manifest has another type, or its objective is unknown.
    """
    check_records_config(config)
    objective = config.get("objective", DEFAULT)
    find_objective(objective)
    places = {piece: number for number, piece in enumerate(pieces)}
    missing = [piece for piece in special_pieces if piece not in places]
    if missing:
        raise ValueError(f"A vocabulary must hold {' '.join(special_pieces)}. Received: none of {' '.join(missing)}.")
    return Layout(
        vocabulary_size=config.get("vocabulary_size", len(pieces)),
        special_ids=tuple(places[piece] for piece in special_pieces),
        objective=objective,
        mask_unit=config.get("mask_unit", "word" if config.get("whole_word") else "token"),
        masked_fraction=config.get("masked_fraction"),
        sequence_length=config.get("sequence_length"),
        max_predictions=config.get("max_predictions"),
        is_packed=config.get("packing", False),
    )


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
            self.note("decoding", place)
            return
        if not self._has_shape(features):
            self.note("shapes", place)
            return
        self._waiting.append((place, features))
        if len(self._waiting) == self._rows:
            self.flush()

    def flush(self) -> None:
        """Count the records that are still waiting."""
        if not self._waiting:
            return
        places = [place for place, _ in self._waiting]
        kinds = (*FEATURE_KINDS, *self._list_span_features())
        names = [name for name in kinds if name in self._waiting[0][1]]
        batch = {name: np.stack([features[name] for _, features in self._waiting]) for name in names}
        self._waiting = []
        self._count(batch, places)

    def note(self, fault: str, place: str) -> None:
        """Count a record with a fault: one of FAULTS, or another that its reader found."""
        self.faults[fault] += 1
        self.first_fault.setdefault(fault, place)

    def _has_shape(self, features: Features) -> bool:
        if None in self._shape:
            first = (len(features["input_ids"]), len(features["masked_lm_ids"]))
            self._shape = (self._shape[0] or first[0], self._shape[1] or first[1])
            self.lengths = np.zeros(self._shape[0] + 1, np.int64)
        length, predictions = self._shape
        return (
            all(len(features[name]) == length for name in TOKEN_FEATURES)
            and all(len(features[name]) == predictions for name in PREDICTION_FEATURES)
            and all(len(features.get(name, ())) == predictions for name in self._list_span_features())
            and len(features.get(LABEL, (0,))) == 1
        )

    def _list_span_features(self) -> tuple[str, ...]:
        return (SPAN_IDS,) if find_objective(self.layout.objective).has_spans else ()

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
        most = self.layout.vocabulary_size - 1
        outside = [(values < 0) | (values > most) for values in (ids, batch["masked_lm_ids"])]

        self.lengths += np.bincount(lengths, minlength=len(self.lengths))
        totals = {
            "counted": len(ids),
            "places": ids.size,
            "tokens": lengths.sum(),
            "words": is_word.sum(),
            "unknown_tokens": (is_word & (originals == unknown)).sum(),
            "positive_labels": batch[LABEL].sum() if LABEL in batch else 0,
            "ids_out_of_range": sum(values.sum() for values in outside),
        }
        self.totals.update({name: int(number) for name, number in totals.items()})
        self._count_predictions(ids[rows, chosen], originals[rows, chosen], rows, chosen, lengths)
        starts = np.diff(batch["input_mask"], axis=1, prepend=0) * inside  # 1 where a text starts
        has_special_tokens, has_segments = self._check_texts(originals, batch["segment_ids"], lengths, starts == 1)
        is_numbered = ((batch["input_mask"] > 0) == inside) & ((starts == 0) | (starts == 1))
        is_numbered &= (batch["input_mask"] <= 1) | self.layout.is_packed
        wrong = {
            "ids": outside[0].any(1) | outside[1].any(1),
            "padding": (~is_numbered | (~inside & (ids != 0))).any(1),
            "special tokens": ~has_special_tokens,
            "segments": ~has_segments,
            "predictions": ~self._has_predictions(batch, predicted, lengths),
        }
        if LABEL in batch:
            wrong["labels"] = ~np.isin(batch[LABEL][:, 0], (0, 1) if self.layout.sentence_label else (0,))
        for fault, is_wrong in wrong.items():
            for row in np.flatnonzero(is_wrong):
                self.note(fault, places[row])

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

    def _check_texts(
        self, originals: np.ndarray, segment_ids: np.ndarray, lengths: np.ndarray, is_start: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return for each record whether its special tokens and its segment ids are right.

        A text is [CLS] ... [SEP], with one more [SEP] inside for pairs. Segment ids are 1 after the first [SEP] of a
        pair, 0 elsewhere.

        Args:
            is_start: bool, (records, sequence_length), whether a text starts here.
        """
        _, _, cls, sep, _ = self.layout.special_ids
        inside = np.arange(originals.shape[1]) < lengths[:, None]
        separators = ((originals == sep) & inside).sum(1)
        is_end = inside & np.concatenate([is_start[:, 1:] | ~inside[:, 1:], np.ones((len(inside), 1), bool)], axis=1)
        are_right = ((originals == cls) & inside) == is_start
        are_right &= (originals == sep) | ~is_end
        is_framed = are_right.all(1) & (lengths > 1)
        if not self.layout.sentence_label:
            return is_framed & (separators >= 1), (segment_ids == 0).all(1)
        first_sep = np.argmax(originals == sep, axis=1)
        expected = inside & (np.arange(originals.shape[1]) > first_sep[:, None])
        has_both = (first_sep > 1) & (expected.sum(1) > 1)
        return is_framed & (separators == 2), (segment_ids == expected).all(1) & has_both

    def _has_predictions(self, batch: Features, predicted: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Return for each record whether its predictions are words, at ascending positions, followed by zeros.

        The spans of an objective that has them must be the runs of neighbouring positions.
        """
        positions, ids = batch["masked_lm_positions"], batch["masked_lm_ids"]
        count = predicted.sum(1)
        are_first = (predicted == (np.arange(predicted.shape[1]) < count[:, None])).all(1)
        are_words = ~np.isin(ids, [self.layout.special_ids[2], self.layout.special_ids[3]])
        are_inside = (positions > 0) & (positions < lengths[:, None] - 1) & are_words
        ascend = (np.diff(positions, axis=1) > 0) | ~predicted[:, 1:]
        is_filler = (positions == 0) & (ids == 0) & (batch["masked_lm_weights"] == 0)
        for name in self._list_span_features():
            are_first &= (batch[name] == number_spans(positions, count)).all(1)
        return (
            (count > 0) & are_first & (are_inside | ~predicted).all(1) & ascend.all(1) & (predicted | is_filler).all(1)
        )


# Judge the contents of records by the rules that they are made by, within the ranges of chance.

LOWEST_FILLED = 0.8  # of the predictions expected, if whole words or spans must fit
COUNTED = {"masked_tokens": "masked_tokens", "instance_tokens": "tokens"}  # the job's name → ours
_REBUILD = "Build the records again with `kbf records`."
_FINE = {
    "decoding": "every record is a tf.train.Example with the features of BERT",
    "shapes": "every feature has its length",
    "ids": "all below the size of the vocabulary",
    "padding": "only at the end, all zeros",
    "special tokens": "[CLS] and [SEP] at their places",
    "segments": "as [CLS] and [SEP] say",
    "predictions": "of words, in ascending places, with zeros after them",
    "labels": "all allowed",
}
_REMEDIES = {
    "ids": "The vocabulary is not the one that the records were made with: " + _REBUILD,
    "special tokens": "Is it the vocabulary that the records were made with? Else build them again.",
}


def judge_records(counts: RecordCounts, counters: Mapping[str, Any], is_whole: bool) -> list[Finding]:
    """Judge layout, labels, masks and text of the counted records.

    Args:
        counters: counters of the manifest; may be empty.
        is_whole: every record was counted, so sums must equal the counters.
    """
    findings = []
    for fault in FAULTS:
        wrong, value = counts.faults[fault], _FINE[fault]
        if wrong:
            value = f"{wrong:,} of {counts.totals['records']:,} records are wrong, first {counts.first_fault[fault]}"
        findings.append(judge(fault, not wrong, value, _REMEDIES.get(fault, _REBUILD)))
    if not counts.totals["counted"]:
        return findings
    return [
        *findings,
        *_judge_counters(counts, counters, is_whole),
        _judge_padding(counts),
        *_judge_labels(counts, counters),
        *_judge_amount_masked(counts),
        *_judge_replacements(counts),
        *_judge_text(counts, counters),
    ]


def _judge_counters(counts: RecordCounts, counters: Mapping[str, Any], is_whole: bool) -> list[Finding]:
    """Compare sums with the job's own, if it kept them and every record was read."""
    label = counts.layout.sentence_label
    ours = COUNTED | ({label.counter: "positive_labels"} if label else {})
    known = {name: counters[name] for name in ours if name in counters}
    if not known or not is_whole:
        return []
    wrong = [
        f"{name} {counts.totals[ours[name]]:,}, not {number:,}"
        for name, number in known.items()
        if counts.totals[ours[name]] != number
    ]
    value = "; ".join(wrong) or f"{', '.join(known)} as the job counted them"
    return [judge("counters", not wrong, value, "The files are not those that the job made. " + _REBUILD)]


def _judge_padding(counts: RecordCounts) -> Finding:
    empty = 1 - share(counts.totals["tokens"], counts.totals["places"])
    value = f"{percent(empty)} of places; mean {share(counts.totals['tokens'], counts.totals['counted']):.1f} tokens"
    return judge(
        "padding share",
        grade(empty, find_objective(counts.layout.objective).most_padding),
        value,
        "Lower records.sequence_length, or give longer documents.",
    )


def _judge_labels(counts: RecordCounts, counters: Mapping[str, Any]) -> list[Finding]:
    """Judge the shares of the labels, and how many of them the text contradicts, if the job counted these."""
    pairs, label = counts.totals["counted"], counts.layout.sentence_label
    if label is None:
        return []
    low, high = chance_range(label.shares[0], pairs)[0], chance_range(label.shares[1], pairs)[1]
    seen = share(counts.totals["positive_labels"], pairs)
    value = f"{percent(seen)} of {pairs:,} pairs; expected {percent(low)} to {percent(high)}"
    value += f", {label.usual}" if label.usual else ""
    wrong: Verdict = "error" if label.is_drawn or seen in (0, 1) else "warning"
    remedy = label.remedies[seen > high] or f"The label of a pair must be drawn evenly. {_REBUILD}"
    findings = [judge(label.counter.replace("_", " "), "ok" if low <= seen <= high else wrong, value, remedy)]
    if (mistaken := mistaken_share(label, counters)) is not None:
        value = f"{percent(mistaken)} of the pairs labelled {label.meanings[1]!r} are of a B that could follow A"
        findings.append(judge("labels by text", grade(mistaken, MOST_MISTAKEN, 0.1), value, NEAR_COPIES))
    return findings


def _judge_amount_masked(counts: RecordCounts) -> list[Finding]:
    totals, layout = counts.totals, counts.layout
    value = f"{totals['masked_tokens']:,}, {percent(share(totals['masked_tokens'], totals['tokens']))} of tokens"
    if layout.masked_fraction is None:
        return [judge("masked tokens", totals["masked_tokens"] > 0, value, _REBUILD)]
    wanted, remedy = totals["wanted_predictions"], "Masks are not by the rule of the manifest. " + _REBUILD
    if layout.mask_unit == "token":
        value += f"; expected {wanted:,}"
        return [
            judge("masked tokens", totals["masked_tokens"] == wanted and not totals["over_predicted"], value, remedy)
        ]
    value += f"; expected {round(LOWEST_FILLED * wanted):,} to {wanted:,}: what does not fit as a whole is left out"
    if totals["over_predicted"]:
        return [judge("masked tokens", False, f"{value}; {totals['over_predicted']:,} records have too many", remedy)]
    verdict: Verdict = "ok" if totals["masked_tokens"] >= LOWEST_FILLED * wanted else "warning"
    return [judge("masked tokens", verdict, value, "Raise records.max_predictions: few words or spans fit.")]


def _judge_replacements(counts: RecordCounts) -> list[Finding]:
    """Check the split of the masked tokens against 80/10/10; a random token is at times [MASK] or the token itself."""
    totals, layout = counts.totals, counts.layout
    masked, one_of_all = totals["masked_tokens"], 1 / layout.vocabulary_size
    # The tokens of a span share one draw: use the number of independent draws that gives a mean the same variance.
    draws = share(masked**2, totals["squared_runs"]) if layout.mask_unit == "span" else masked
    random_share = 1 - MASK_SHARE - KEEP_SHARE
    expected = {
        "hidden": MASK_SHARE + random_share * one_of_all,
        "kept": KEEP_SHARE + random_share * one_of_all,
        "replaced": random_share * (1 - 2 * one_of_all),
    }
    findings = []
    for name, probability in expected.items():
        low, high = chance_range(probability, draws)
        seen = share(totals[name], masked)
        value = f"{percent(seen)} of masked tokens; expected {percent(low)} to {percent(high)}"
        findings.append(judge(name, low <= seen <= high, value, "Masks are not drawn 80/10/10. " + _REBUILD))
    return findings


def _judge_text(counts: RecordCounts, counters: Mapping[str, Any]) -> list[Finding]:
    """Judge repeated records, and what the tokenizer lost.

    The latter by characters, if the job counted them, since a lost sentence is one token.
    """
    unknown, known = share(counts.totals["unknown_tokens"], counts.totals["words"]), bool(counters.get("characters"))
    value = f"{percent(unknown)} of {counts.totals['words']:,} tokens"
    remedy = advise_unknown(counters) if known else LEARN
    return [
        judge("unknown tokens", grade(unknown, 0.01, 0.1), value, remedy),
        *(judge_lost(counters) if known else ()),
        judge(
            "repeated records",
            grade(counts.repeats.repeated_share, 0.01, 0.5),
            f"{percent(counts.repeats.repeated_share)} were there before",
            "Remove copies of documents from the corpus; very short documents repeat by themselves.",
        ),
    ]
