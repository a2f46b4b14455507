"""Read and encode examples of one or two texts, decode answers, and find cut and repeated texts."""

import hashlib
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import scipy  # its submodules are loaded when they are used

from keras_bert_flow.tasks.core.task import Features, Task, count_joined, join_texts
from keras_bert_flow.tasks.formats.rows import abridge
from keras_bert_flow.tasks.formats.tables import read_columns, require_text, trim_labels
from keras_bert_flow.text.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True)
class TextExample:
    """An example of one or two texts.

    Attributes:
        label: by task, the name of a class, a number, or a tuple of names; None if unknown.
        place: file and row, for messages; any other name if not read from a file.
    """

    text: str
    text_pair: str | None = None
    label: Any = None
    place: str = "an example"

    @property
    def inputs(self) -> dict[str, str]:
        """The texts by name: text, and text_pair where there is one."""
        return {"text": self.text} | ({} if self.text_pair is None else {"text_pair": self.text_pair})

    @property
    def gold(self) -> Any:
        return frozenset(self.label) if isinstance(self.label, tuple) else self.label


def read_examples(
    path: str | Path,
    texts: tuple[str, str | None],
    labels: Sequence[str],
    header: bool,
    max_examples: int | None,
    read_label: Callable[[str, list], Any] | None,
    keeps_blanks: bool = False,
) -> list[TextExample]:
    """Read examples from a table in the layout of `tables.read_table`.

    Args:
        texts: columns of the text and of the second text, if there is one.
        labels: columns that make up the label; empty if the table has no labels.
        read_label: makes a label from the place, for messages, and the values of those columns; None if the only one
            has its name. Blanks around names, and repeated names of a tuple, are removed with a warning.
        keeps_blanks: as for `read_columns`.
    """
    columns = [column for column in texts if column is not None]
    places, found, shown = [], [], []
    for number, values in read_columns(path, columns, list(labels), header, max_examples, keeps_blanks):
        places.append(f"{path}, row {number}")
        parts = values[len(columns) :]
        label = None
        if parts and read_label is not None:
            label = read_label(places[-1], parts)
        elif parts:
            require_text(places[-1], labels[0], parts[0])
            label = parts[0]
        found.append(label)
        shown.append((values[0], values[1] if len(columns) == 2 else None))
    trimmed = trim_labels(places, found)
    return [TextExample(*pair, *rest) for pair, *rest in zip(shown, trimmed, places, strict=True)]


class TextTask(Task):
    """Base class of tasks that label a text, or a pair of texts; see `settings.TextSettings`."""

    text_pair: str | None

    def make_example(self, item: Any) -> TextExample:
        return make_text_example(item, is_pair=self.text_pair is not None)


def make_text_example(item: Any, is_pair: bool) -> TextExample:
    """Make an example from a text, from two texts, or from an object with `text` and `text_pair`.

    A text may be blank: the model then reads its special tokens only. One blank text also stands for a blank pair.

    Raises:
        ValueError: the item does not have as many texts as the task.
    """
    if is_pair and is_blank(item):
        return TextExample("", "")
    return TextExample(*take_texts(item, ("text", "text_pair") if is_pair else ("text",)))


def is_blank(item: Any) -> bool:
    """Return whether an item to predict is a blank text, as from a blank line."""
    return isinstance(item, str) and not item.strip()


def take_texts(item: Any, fields: Sequence[str]) -> list[str]:
    """Return the texts of an item: a string for one field, a sequence for several, or an object that names them.

    Raises:
        ValueError: it is none of these.
    """
    if isinstance(item, str):
        texts = [item]
    elif isinstance(item, Mapping):
        texts = [item[name] for name in fields] if set(item) == set(fields) else []
    else:
        texts = list(item) if isinstance(item, list | tuple) else []
    if len(texts) != len(fields) or not all(isinstance(text, str) for text in texts):
        raise ValueError(
            f"An item for this task must have the texts {', '.join(fields)}. Received: {abridge([repr(item)])}. "
            "Give a text for one, a list or an object with these names for several."
        )
    return texts


def encode_examples(
    tokenizer: Tokenizer, examples: Sequence[TextExample], sequence_length: int, labels: dict[str, np.ndarray]
) -> Features:
    """Encode each example as one row: [CLS] A [SEP], or [CLS] A [SEP] B [SEP] if it has a second text."""
    firsts = tokenizer.encode_batch([example.text for example in examples])
    seconds = [None if example.text_pair is None else tokenizer.encode(example.text_pair) for example in examples]
    pairs = list(zip(firsts, seconds, strict=True))
    joined = [join_texts(tokenizer, *pair, sequence_length) for pair in pairs]
    return Features(
        token_ids=[token_ids for token_ids, _ in joined],
        first_lengths=np.array([first_length for _, first_length in joined], dtype=np.int32),
        examples=np.arange(len(examples), dtype=np.int32),
        labels=labels,
        sequence_length=sequence_length,
        full_lengths=np.array([count_joined(tokenizer, *pair) for pair in pairs], dtype=np.int64),
    )


def are_labelled(examples: Sequence[Any]) -> bool:
    """Return whether the examples have labels.

    Raises:
        ValueError: only some of them have labels.
    """
    unlabelled = [example for example in examples if example.label is None]
    if unlabelled and len(unlabelled) < len(examples):
        raise ValueError(
            "Either every example must have a label or none. "
            f"Received: {unlabelled[0].place} without one. Fill it or drop the row."
        )
    return not unlabelled


def labels_of(examples: Sequence[Any]) -> list[Any]:
    """Return the label of each example.

    Raises:
        ValueError: there are no examples, or one has no label.
    """
    if not examples or not are_labelled(examples):
        received = f"{examples[0].place} without a label" if examples else "no examples"
        raise ValueError(f"Learning and scoring need labels. Received: {received}. Read a table that has them.")
    return [example.label for example in examples]


# Count the texts that are longer than a model reads, and the tokens that are cut off.

FEW = 0.01  # the share of texts for which a longer sequence is not advised


@dataclass
class CutTexts:
    """Counts of the texts that were encoded, by their length before they were cut.

    A text is a row of a table: one text, a pair, or for a multiple choice each of its choices with the context.
    """

    sequence_length: int = field(init=False, default=0)
    _lengths: Counter[int] = field(init=False, default_factory=Counter)  # tokens, special ones included → texts

    def add(self, features: Features) -> None:
        """Add what `Task.encode` made; nothing for tasks that divide long texts into windows."""
        if features.full_lengths is not None and features.sequence_length is not None:
            self.sequence_length = features.sequence_length
            lengths, counts = np.unique(features.full_lengths, return_counts=True)
            self._lengths.update(dict(zip(lengths.tolist(), counts.tolist(), strict=True)))

    @property
    def counters(self) -> dict[str, int]:
        """The counts by name; empty if no text was added.

        `sequence_length`; `texts` and `tokens`, special ones included; `texts_cut` and `tokens_cut`, the texts longer
        than that and what they lose; `length_that_cuts_few`, the least length that would cut at most 1 % of the texts.
        """
        if not self._lengths:
            return {}
        over = {length: count for length, count in self._lengths.items() if length > self.sequence_length}
        longer = length_that_cuts_few = 0
        for length in sorted(self._lengths, reverse=True):
            longer += self._lengths[length]
            if longer > FEW * self._lengths.total():
                length_that_cuts_few = length
                break
        return {
            "sequence_length": self.sequence_length,
            "texts": self._lengths.total(),
            "texts_cut": sum(over.values()),
            "tokens": sum(length * count for length, count in self._lengths.items()),
            "tokens_cut": sum((length - self.sequence_length) * count for length, count in over.items()),
            "length_that_cuts_few": length_that_cuts_few,
        }


def describe_cut(counters: Mapping[str, int]) -> str:
    """Return a sentence on the texts that were cut, by the counters of `CutTexts`; empty if none was."""
    if not counters.get("texts_cut"):
        return ""
    share = 100 * counters["tokens_cut"] / counters["tokens"]
    few, sequence_length = counters["length_that_cuts_few"], counters["sequence_length"]
    advice = "at most 1 % of the texts are longer" if few <= sequence_length else f"{few:,} would cut at most 1 %"
    return (
        f"{counters['texts_cut']:,} of {counters['texts']:,} texts are longer than {sequence_length:,} tokens "
        f"(sequence_length): {share:.1f} % of the tokens are cut off and not read; {advice}."
    )


# Count the rows of a file that are rows of the training file too: the same texts, with the same label or another.


@dataclass(frozen=True)
class Repeats:
    """Rows of a file whose texts are those of a training row.

    Attributes:
        rows: all rows of the file.
        same_label: repeated rows with a label that the texts have in training.
        other_label: repeated rows whose label the texts do not have there.
    """

    rows: int
    same_label: int
    other_label: int

    def describe(self, name: str) -> str:
        """Return one line about the file, or "" if no row is repeated."""
        repeated = self.same_label + self.other_label
        if not repeated:
            return ""
        return (
            f"{name}: {repeated:,} of {self.rows:,} rows have the texts of a training row, {self.same_label:,} with "
            f"the label that they have there and {self.other_label:,} with another. Scores on them are not scores on "
            "unseen texts. Texts are compared without case and blanks."
        )


def count_repeats(training: Sequence[Any], examples: Sequence[Any]) -> Repeats:
    """Count the examples whose texts are those of a training example."""
    known = defaultdict(set)
    for example in training:
        known[identify(example)].add(example.gold)
    found = [(example.gold, known[key]) for example in examples if (key := identify(example)) in known]
    same = sum(gold in golds for gold, golds in found)
    return Repeats(len(examples), same, len(found) - same)


def identify(example: Any) -> bytes:
    """Return a digest of the texts of an example, without case, blanks and Unicode form: equal for the same texts."""
    parts = [part for given in example.inputs.values() for part in ([given] if isinstance(given, str) else given)]
    folded = [" ".join(unicodedata.normalize("NFC", part.casefold()).split()) for part in parts]
    return hashlib.blake2b("\0".join(folded).encode(), digest_size=16).digest()


# Describe the labels of a file that no model can predict, as counted by `Task.count_unreachable`.

Unreachable = Mapping[str, Mapping[str, int]]  # what is counted → `total`, and a count per reason

# What is counted → what is wrong with it.
PROBLEMS = {
    "answers": "cannot be given exactly",
    "questions": "have no answer that can be given exactly",
    "words": "are not shown to the model as written",
    "spans": "are not shown to the model whole",
    "texts": "are the same to the model as another text",
}
# (What is counted, reason) → the reason in words.
REASONS = {
    ("answers", "no_piece"): "dropped by the tokenizer",
    ("answers", "too_long"): "longer than max_answer_tokens",
    ("answers", "cut"): "cut by a window",
    ("answers", "inside_a_piece"): "beginning or ending inside a piece",
    ("answers", "edge_dropped"): "beginning or ending with a character that the tokenizer drops",
    ("questions", "no_answer"): "with those answers only",
    ("words", "no_piece"): "dropped by the tokenizer",
    ("words", "unknown"): "with [UNK]",
    ("words", "cut"): "longer than sequence_length",
    ("spans", "cut"): "cut by every window",
    ("texts", "cut"): "differing beyond sequence_length only",
    ("texts", "folded"): "with the same tokens, such as [UNK]",
}


def list_unreachable(found: Unreachable) -> Iterator[tuple[str, int, dict[str, int]]]:
    """Yield what is counted and its problem in words, the total, and the count by reason in words."""
    for noun, counts in found.items():
        reasons = {REASONS[noun, reason]: count for reason, count in counts.items() if reason != "total"}
        yield f"{noun} {PROBLEMS[noun]}", counts["total"], reasons


def describe_unreachable(name: str, found: Unreachable) -> str:
    """Return one line about a file, or "" if a perfect model could predict all of its labels."""
    parts = []
    for problem, total, reasons in list_unreachable(found):
        count = sum(reasons.values())
        listed = ", ".join(f"{number:,} {reason}" for reason, number in reasons.items())
        parts.append(f"{count:,} of {total:,} {problem} ({count / total:.2%}): {listed}")
    return f"{name}: {'; '.join(parts)}." if parts else ""


# Convert model outputs to one row of logits per example, in the order of the examples.


def logits_of(outputs: Mapping[str, Any], features: Features, width: int) -> np.ndarray:
    """Return the logits of a model with one output row per example.

    Args:
        width: logits per row. If 1, `outputs` may also be (rows,).
    Returns:
        float64, (examples, width).
    Raises:
        ValueError: the output has another shape, or is not finite.
    """
    logits = np.asarray(outputs["logits"], dtype=np.float64)
    received = logits.shape
    if width == 1 and logits.ndim == 1:
        logits = logits[:, np.newaxis]
    if logits.shape != (len(features), width):
        raise ValueError(
            f"`logits` must be (rows, {width}). Received: {received} for {len(features)} rows. "
            "Predict every row with the model of this task."
        )
    if not np.isfinite(logits).all():
        raise ValueError(
            "`logits` must be finite. Received: nan or infinity: the fine-tuning diverged. Lower its learning rate."
        )
    ordered = np.empty_like(logits)
    ordered[features.examples] = logits
    return ordered


def probabilities_of(outputs: Mapping[str, Any], features: Features, width: int) -> np.ndarray:
    """Return the softmax of the logits, float64, (examples, width)."""
    return scipy.special.softmax(logits_of(outputs, features, width), axis=1)


def token_logits_of(outputs: Mapping[str, Any], name: str, features: Features) -> list[np.ndarray]:
    """Return the logits of a model with one logit per token, float64, (length,) each.

    Raises:
        ValueError: the rows or their lengths differ from those of the features, or a logit is not finite.
    """
    logits = [np.asarray(row, dtype=np.float64) for row in outputs[name]]
    shapes, expected = [row.shape for row in logits], [(len(row),) for row in features.token_ids]
    if shapes != expected:
        raise ValueError(
            f"The output {name!r} must have one logit for each token of each row, without padding. Received: "
            f"{len(shapes)} rows for {len(expected)}, or rows of other lengths. Cut each row to its length."
        )
    for number, row in enumerate(logits):
        if not np.isfinite(row).all():
            raise ValueError(
                f"The output {name!r} must be finite numbers. Received: nan or inf in row {number}. "
                "The training has diverged: lower its learning rate."
            )
    return logits


def pair_numbers(
    examples: Sequence[Any], predictions: Sequence[Mapping[str, Any]], field: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return the labels of the examples, and the field of their predictions that answers them."""
    return np.array(labels_of(examples)), np.array([prediction[field] for prediction in predictions])


# Check the fields of a task.


def check_main_metric(name: str, metrics: Sequence[str]) -> None:
    """Raise ValueError for a main metric that the task does not compute, or that is not better when higher."""
    if name not in metrics:
        raise ValueError(
            f"`main_metric` must be one by which runs of this task are compared. Received: {name!r}. "
            f"Use one of: {', '.join(metrics)}."
        )


def check_labels(labels: Sequence[str], least: int) -> None:
    """Raise ValueError for repeated labels, or for fewer than `least` of them but not none."""
    if len(set(labels)) < len(labels) or (labels and len(labels) < least):
        raise ValueError(
            f"`labels` must be {least} or more different names. Received: {', '.join(labels)}. "
            "Leave them out to learn them from the training table."
        )


def refuse_labels(labels: Sequence[str], kind: str) -> None:
    """Raise ValueError if a task without labels is given some."""
    if labels:
        raise ValueError(f"A {kind} has no labels. Received: {', '.join(labels)}. Leave `labels` out.")


def require_learnt(labels: Sequence[str]) -> None:
    """Raise ValueError if a task has no labels yet."""
    if not labels:
        raise ValueError(
            "A task must know its labels before it is used. Received: none. "
            "Call `learn` with the training examples, or give `labels`."
        )
