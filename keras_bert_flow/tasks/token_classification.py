"""Token classification (entities, parts of speech): windows of words, and tags aligned with tokens."""

import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from keras_bert_flow.tasks.core.metrics import has_collapsed, make_table
from keras_bert_flow.tasks.core.task import IGNORED, Features, Measure, Prediction, Task
from keras_bert_flow.tasks.formats.conll import (
    SPAN_METRICS,
    count_sentences,
    count_spans,
    measure_sentences,
    read_predicted_tags,
    read_tagged_words,
    span_metrics,
    write_conll,
)
from keras_bert_flow.tasks.formats.rows import abridge
from keras_bert_flow.tasks.formats.tagged_words import (
    OUTSIDE,
    PLAIN,
    SCHEMES,
    TaggedWords,
    describe_scheme,
    detect_scheme,
    find_other_spelling,
    gold_tags,
    guess_scheme,
    is_tag,
    spans_of,
    split_words,
    tag_names,
)
from keras_bert_flow.tasks.settings import TokenClassificationSettings
from keras_bert_flow.text.tokenizers.tokenizer import Tokenizer

# Split sentences that are too long for a model into overlapping windows, at word boundaries.


@dataclass(frozen=True)
class Window:
    """The words of one row, and those whose predictions are taken from it.

    Attributes:
        first: first word of the row.
        end: word after the last one of the row.
        answered: words of the sentence whose prediction is taken from this window, int, (answers,).
        positions: position of their first pieces in the row, int, (answers,).
    """

    first: int
    end: int
    answered: np.ndarray
    positions: np.ndarray


def window_size(sequence_length: int, stride: int | None) -> tuple[int, int]:
    """Return the number of pieces that fit into a row, and the stride; None becomes half a window.

    Raises:
        ValueError: no piece fits, or the stride is longer than that.
    """
    room = sequence_length - 2  # [CLS], [SEP]
    if room < 1:
        raise ValueError(f"`sequence_length` must be at least 3. Received: {sequence_length}. Take 128.")
    stride = stride or max(room // 2, 1)
    if stride > room:
        raise ValueError(
            f"`stride` must be at most `sequence_length` - 2, or words would fall between windows. Received: "
            f"stride={stride}, sequence_length={sequence_length}. Try stride={max(room // 2, 1)}."
        )
    return room, stride


def cut_windows(lengths: np.ndarray, room: int, stride: int) -> list[Window]:
    """Split a sentence into windows; each word is predicted in the window with the most context around it.

    Most context means more pieces on the shorter side, then more on both sides, then the earlier window. Words are
    never split between windows.

    Args:
        lengths: pieces of each word, from 1 to `room`, int, (words,).
        room: pieces of a window.
        stride: most pieces from the start of one window to the start of the next, but at least one word. At most
            `room`.
    Source: google-research/bert, run_squad.py, `_check_is_max_context`, where the second rule is 0.01 of the window's
    length, which would prefer a longer window to one with more context.
    """
    starts = np.concatenate([[0], np.cumsum(lengths)])  # (words + 1,), in pieces
    if starts[-1] <= room:
        words = np.arange(len(lengths))
        return [Window(0, len(lengths), words, 1 + starts[:-1])]
    ranges = _ranges(starts, room, stride)
    context = np.full((len(ranges), len(lengths)), -1)  # around each word in each window; -1 where it is not in it
    for number, (first, end) in enumerate(ranges):
        before, after = starts[first:end] - starts[first], starts[end] - starts[first + 1 : end + 1]
        context[number, first:end] = np.minimum(before, after) * 2 * starts[-1] + before + after
    best = context.argmax(axis=0)  # the first of ties
    windows = []
    for number, (first, end) in enumerate(ranges):
        answered = np.flatnonzero(best == number)
        windows.append(Window(first, end, answered, 1 + starts[answered] - starts[first]))
    return windows


def _ranges(starts: np.ndarray, room: int, stride: int) -> list[tuple[int, int]]:
    ranges: list[tuple[int, int]] = []
    first, words = 0, len(starts) - 1
    while not ranges or ranges[-1][1] < words:
        end = int(np.searchsorted(starts, starts[first] + room, side="right")) - 1
        if not ranges or end > ranges[-1][1]:  # it contains a word that no other window has yet
            ranges.append((first, end))
        first = max(first + 1, int(np.searchsorted(starts, starts[first] + stride, side="right")) - 1)
    return ranges


OUTPUT = "logits"

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TokenClassification(TokenClassificationSettings, Task):
    """Token classification: a tag for each word, predicted at its first piece, as in the paper.

    Attributes:
        word_column: column of the words, from 0, or "last". A .jsonl has the fields `words` and `tags`.
        tag_column: column of the tags.
        scheme: IOB1, IOB2, BIOES, or plain if tags are independent of their neighbours. None: `learn` detects it, and
            rejects training tables that are legal in none. If given, illegal tags are read as by conlleval.
        stride: sentences that are too long are split into windows, at most this many pieces from one to the next. None:
            half a window.
        strict: predictions and labels are read as in seqeval's strict mode, for spans and for the score.
        main_metric: precision, recall, f1 or accuracy; `learn` makes it accuracy for plain tags.
        labels: the tags, as found by `learn`.
    Source: Devlin et al. 2019, section 5.3; arXiv:1810.04805.
    """

    baseline: ClassVar[str] = "commonest tag"
    headings: ClassVar[Mapping[str, str]] = {
        "precision": "span precision %",
        "recall": "span recall %",
        "f1": "span F1 %",
        "accuracy": "accuracy of words %",
    }
    class_name: ClassVar[str] = "type of span"
    official_format: ClassVar[str | None] = "conll"
    architecture: ClassVar[str | None] = "ForTokenClassification"
    has_classes: ClassVar[bool] = True

    labels: tuple[str, ...] = ()

    def __post_init__(self):
        for name, value, valid in (
            ("scheme", self.scheme, (None, *SCHEMES)),
            ("main_metric", self.main_metric, SPAN_METRICS),
        ):
            if value not in valid:
                raise ValueError(f"`{name}` must be one of {', '.join(map(str, valid))}. Received: {value!r}.")
        if self.stride is not None and self.stride < 1:
            raise ValueError(f"`stride` must be at least 1. Received: {self.stride}. Leave it out for half a window.")

    @classmethod
    def find_fields(cls, labels: Sequence[str], source: str) -> dict[str, Any]:
        """Return also the scheme of the labels, and warn if they look like tags of spans in another spelling."""
        scheme = guess_scheme(labels)
        if scheme == PLAIN and (spelling := find_other_spelling(labels)):
            _logger.warning(
                "%s: the tags look like %s, whose spans are not read: each word is taken by itself. %s in `id2label`.",
                *(source, spelling.scheme, spelling.remedy),
            )
        return {"labels": labels, "scheme": scheme, "main_metric": "accuracy" if scheme == PLAIN else "f1"}

    def read(self, path: str | Path, max_examples: int | None = None, has_labels: bool = True) -> Sequence[TaggedWords]:
        return read_tagged_words(path, self.word_column, self.tag_column, has_labels, max_examples)

    def make_example(self, item: Any) -> TaggedWords:
        """Make an example from a text, which is split into words, or from a list of words."""
        if isinstance(item, str):
            words = split_words(item)
            offsets = tuple((word.start, word.end) for word in words)
            return TaggedWords(tuple(word.text for word in words), text=item, offsets=offsets)
        if not isinstance(item, list | tuple) or not all(isinstance(word, str) and word.strip() for word in item):
            raise ValueError(
                f"An item for this task must be a text or a list of words. Received: {abridge([repr(item)])}. "
                "Give one of them."
            )
        return TaggedWords(tuple(item))

    def learn(self, examples: Sequence[TaggedWords]) -> "TokenClassification":
        """Return this task with a scheme and all tags that the scheme has for the types of the examples."""
        sentences = gold_tags(examples)
        scheme: Any = self.scheme or detect_scheme(sentences, lambda sentence, word: examples[sentence].place(word))
        for example, tags in zip(examples, sentences, strict=True):
            for place, tag in enumerate(tags):
                if not is_tag(tag, scheme):
                    raise ValueError(
                        f"{example.place(place)}: a tag must be one of {describe_scheme(scheme)}. "
                        f"Received: {tag!r}. Correct the row."
                    )
        labels = tag_names(chain.from_iterable(sentences), scheme)
        if len(labels) < 2:
            raise ValueError(
                f"A training table must have at least two tags. Received: only {abridge(labels) or 'none'}. "
                "Check the tag column, or read more rows."
            )
        return replace(
            self, scheme=scheme, labels=labels, main_metric="accuracy" if scheme == PLAIN else self.main_metric
        )

    def encode(self, tokenizer: Tokenizer, examples: Sequence[TaggedWords], sequence_length: int) -> Features:
        """Encode sentences as rows: [CLS], the pieces of words, [SEP]; several windows for a long sentence.

        A word that is longer than a window is truncated to its first pieces. In overlapping windows each word has its
        label only in the window that predicts it, so that all words have the same weight.
        """
        room, stride = window_size(sequence_length, self.stride)
        ids = {name: number for number, name in enumerate(self.labels)}
        # A word without pieces, such as one of control characters only, is [UNK].
        distinct = {word for example in examples for word in example.words}
        pieces_of = {word: tokenizer.encode_word(word).tolist() or [tokenizer.unk_id] for word in distinct}
        tagged = any(example.tags is not None for example in examples)
        token_ids, labels, numbers, windows = [], [], [], []
        for number, example in enumerate(examples):
            pieces = [pieces_of[word][:room] for word in example.words]
            tags = np.array(self._tag_ids(ids, example), dtype=np.int32) if tagged else None
            for window in cut_windows(np.fromiter(map(len, pieces), dtype=np.int64), room, stride):
                shown = chain.from_iterable(pieces[window.first : window.end])
                token_ids.append(np.array([tokenizer.cls_id, *shown, tokenizer.sep_id], dtype=np.int32))
                numbers.append(number)
                windows.append(window)
                if tags is not None:
                    labels.append(np.full(len(token_ids[-1]), IGNORED, dtype=np.int32))
                    labels[-1][window.positions] = tags[window.answered]
        return Features(
            token_ids=token_ids,
            first_lengths=np.fromiter(map(len, token_ids), dtype=np.int32),
            examples=np.array(numbers, dtype=np.int32),
            labels={OUTPUT: labels} if tagged else {},
            details=windows,
            sequence_length=sequence_length,
        )

    def count_unreachable(
        self, tokenizer: Tokenizer, examples: Sequence[TaggedWords], features: Features
    ) -> dict[str, dict[str, int]]:
        """Count words that the model does not see as written, and spans that no window contains whole.

        Returns:
            words: total, and by reason no_piece, the tokenizer drops the whole word; unknown, part of it is [UNK]; cut,
            it is longer than a row. spans: total and cut, no window contains the whole span. Each is absent if there is
            no such word or span.
        """
        room = (features.sequence_length or 0) - 2  # [CLS], [SEP]; `encode` sets the length
        words, reasons = Counter(word for example in examples for word in example.words), Counter[str]()
        for word, count in words.items():
            pieces = tokenizer.encode(word)
            if len(pieces) == 0:
                reasons["no_piece"] += count
            elif len(pieces) > room:
                reasons["cut"] += count
            elif tokenizer.unk_id in pieces:
                reasons["unknown"] += count
        spans = _count_spans(examples, features, self._known_scheme(), self.strict)
        found = {"words": {"total": words.total()} | dict(sorted(reasons.items())), "spans": spans}
        return {noun: counts for noun, counts in found.items() if len(counts) > 1}

    def decode(
        self, outputs: Mapping[str, Sequence[np.ndarray]], features: Features, examples: Sequence[TaggedWords]
    ) -> list[Prediction]:
        """Turn logits into tags and spans.

        Returns:
            For each sentence: words; tags, one per word; probabilities of these tags; spans, each with type,
            first_word, end_word (exclusive), start and end (in characters of the text, exclusive) and text. The text is
            the one that the words were split from, or the words joined by spaces.
        """
        borders = np.cumsum([0, *(len(example.words) for example in examples)])
        chosen, probabilities = np.zeros(borders[-1], dtype=np.int64), np.zeros(borders[-1])
        if borders[-1]:
            rows = zip(outputs[OUTPUT], features.details, strict=True)
            logits = np.concatenate([np.asarray(row)[window.positions] for row, window in rows]).astype(np.float64)
            self._check_logits(logits)
            answered = zip(borders[features.examples], features.details, strict=True)
            places = np.concatenate([border + window.answered for border, window in answered])
            chosen[places] = logits.argmax(axis=-1)
            logits -= logits.max(axis=-1, keepdims=True)  # that of the chosen tag is 0 now, and exp(0) is 1
            probabilities[places] = 1 / np.exp(logits).sum(axis=-1)
        return [
            self._predict(example, [self.labels[tag] for tag in chosen[first:end]], probabilities[first:end].tolist())
            for example, first, end in zip(examples, borders[:-1], borders[1:], strict=True)
        ]

    def score(self, examples: Sequence[TaggedWords], predictions: Sequence[Prediction]) -> dict[str, float]:
        """Compute precision, recall and f1 of spans (over all types) and the accuracy of words, 0 to 1."""
        return span_metrics(gold_tags(examples), _tags(predictions), self._known_scheme(), self.strict)

    def guess(self, training: Sequence[TaggedWords], examples: Sequence[TaggedWords]) -> list[Prediction]:
        """Predict the most common tag of training for each word, with its share there as the probability."""
        counts = Counter(chain.from_iterable(gold_tags(training)))
        if not counts:
            raise ValueError(
                "The commonest tag needs at least one word. Received: none. Read the training table first."
            )
        tag = min(counts, key=lambda tag: (-counts[tag], tag))
        share = counts[tag] / counts.total()
        return [
            self._predict(example, [tag] * len(example.words), [share] * len(example.words)) for example in examples
        ]

    def tabulate(
        self, examples: Sequence[TaggedWords], predictions: Sequence[Prediction]
    ) -> dict[str, dict[str, float | int]]:
        """Compute precision, recall and f1 of each type, and the counts gold, predicted and correct."""
        counts = count_spans(gold_tags(examples), _tags(predictions), self._known_scheme(), self.strict)
        return make_table(counts, counts.values())

    def show(self, example: TaggedWords) -> dict[str, Any]:
        """Return an example for display; its labels are the words with a tag, as word/tag."""
        tagged = zip(example.words, example.tags or (), strict=True)
        return {"text": example.written()[0], "gold": [f"{word}/{tag}" for word, tag in tagged if tag != OUTSIDE]}

    def list_texts(self, example: TaggedWords) -> list[str]:
        return [example.written()[0]]

    def review(self, example: TaggedWords, prediction: Prediction) -> dict[str, Any] | None:
        """Return the wrongly tagged words, as word/tag, and the highest probability of these tags."""
        tagged = zip(example.words, example.tags or (), prediction["tags"], prediction["probabilities"], strict=True)
        wrong = [row for row in tagged if row[1] != row[2]]
        if not wrong:
            return None
        return {
            "text": example.written()[0],
            "gold": [f"{word}/{tag}" for word, tag, _, _ in wrong],
            "predicted": [f"{word}/{answer}" for word, _, answer, _ in wrong],
            "probability": max(probability for *_, probability in wrong),
        }

    def is_collapsed(self, examples: Sequence[TaggedWords], predictions: Sequence[Prediction]) -> bool:
        """Return whether every word has the same predicted tag, such as O, though the labels differ."""
        return has_collapsed(chain.from_iterable(gold_tags(examples)), chain.from_iterable(_tags(predictions)))

    def make_measure(self, examples: Sequence[TaggedWords], predictions: Sequence[Prediction]) -> Measure:
        counts = count_sentences(gold_tags(examples), _tags(predictions), self._known_scheme(), self.strict)
        return lambda chosen: measure_sentences(counts[chosen])[self.main_metric]

    def names_of(self, example: TaggedWords) -> Sequence[str]:
        return example.tags or ()

    def describe_guesses(self, given: Collection[str]) -> list[str]:
        if "scheme" in given:
            return []
        read = (
            "plain, each a class of its own: words are scored, there are no spans"
            if self.scheme == PLAIN
            else self.scheme
        )
        return [f"The tags are read as {read}, as detected in the training file; `task.scheme` sets another."]

    def write_official(self, path: Path, examples: Sequence[TaggedWords], predictions: Sequence[Prediction]) -> None:
        write_conll(path, examples, [found["tags"] for found in predictions])

    def write_beside(self, path: Path, examples: Sequence[TaggedWords], predictions: Sequence[Prediction]) -> None:
        with suppress(ValueError):  # a word of a .jsonl may contain a blank, which columns cannot express
            self.write_official(Path(f"{path}.conll"), examples, predictions)

    def read_official(self, path: str | Path, examples: Sequence[TaggedWords]) -> list[Prediction]:
        return [
            {"words": list(each.words), "tags": list(each.tags or ())} for each in read_predicted_tags(path, examples)
        ]

    def _predict(self, example: TaggedWords, tags: list[str], probabilities: list[float]) -> Prediction:
        spans = example.show_spans(spans_of(tags, self._known_scheme(), self.strict))
        return {"words": list(example.words), "tags": tags, "probabilities": probabilities, "spans": spans}

    def _tag_ids(self, ids: Mapping[str, int], example: TaggedWords) -> list[int]:
        if example.tags is None:
            raise ValueError(
                f"{example.place(0)}: all sentences must have tags, or none. Received: one without. "
                "Read it with labels."
            )
        for place, tag in enumerate(example.tags):
            if tag not in ids:
                raise ValueError(
                    f"{example.place(place)}: a tag must be one that the training table has. Received: {tag!r}. "
                    f"Known tags: {abridge(self.labels)}. Correct it, or add such sentences to the training table."
                )
        return [ids[tag] for tag in example.tags]

    def _check_logits(self, logits: np.ndarray) -> None:
        if logits.shape != (len(logits), len(self.labels)):
            raise ValueError(
                f"`{OUTPUT}` must have a number for each tag, (length, {len(self.labels)}). "
                f"Received: shape {logits.shape}. Decode with the task that the model was trained on."
            )
        if not np.isfinite(logits).all():
            raise ValueError(
                f"`{OUTPUT}` must be finite. Received: nan or infinity: the fine-tuning diverged. Lower its learning "
                "rate."
            )

    def _known_scheme(self) -> str:
        if self.scheme is None:
            raise ValueError("Tags are read in a scheme. Received: None. Learn from the training table first.")
        return self.scheme


def _tags(predictions: Sequence[Prediction]) -> list[list[str]]:
    return [prediction["tags"] for prediction in predictions]


def _count_spans(examples: Sequence[TaggedWords], features: Features, scheme: str, strict: bool) -> dict[str, int]:
    windows: list[list[Window]] = [[] for _ in examples]
    for owner, window in zip(features.examples.tolist(), features.details, strict=True):
        windows[owner].append(window)
    total, cut = 0, 0
    for example, shown in zip(examples, windows, strict=True):
        for span in spans_of(example.tags or (), scheme, strict):
            total += 1
            cut += not any(window.first <= span.first and span.end <= window.end for window in shown)
    return {"total": total} | ({"cut": cut} if cut else {})
