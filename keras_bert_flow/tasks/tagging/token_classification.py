"""Token classification: named entities, parts of speech, chunks."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from keras_bert_flow.tasks.core.features import IGNORED, Features
from keras_bert_flow.tasks.core.metrics import has_collapsed
from keras_bert_flow.tasks.core.task import Measure, Prediction, Task
from keras_bert_flow.tasks.formats.rows import abridge
from keras_bert_flow.tasks.tagging.conll import read_predicted_tags, read_tagged_words, write_conll
from keras_bert_flow.tasks.tagging.settings import TokenClassificationSettings
from keras_bert_flow.tasks.tagging.span_metrics import (
    SPAN_METRICS,
    count_sentences,
    measure_sentences,
    span_metrics,
    span_table,
)
from keras_bert_flow.tasks.tagging.tag_alignment import count_hidden_words
from keras_bert_flow.tasks.tagging.tag_schemes import (
    OUTSIDE,
    PLAIN,
    SCHEMES,
    describe_scheme,
    detect_scheme,
    is_tag,
    spans_of,
    tag_names,
)
from keras_bert_flow.tasks.tagging.tagged_words import TaggedWords, gold_tags
from keras_bert_flow.tasks.tagging.word_windows import PiecesOfWords, cut_windows, window_size
from keras_bert_flow.text.tokenizers.tokenizer import Tokenizer

OUTPUT = "logits"


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

    def read(self, path: str | Path, max_examples: int | None = None, has_labels: bool = True) -> Sequence[TaggedWords]:
        return read_tagged_words(path, self.word_column, self.tag_column, has_labels, max_examples)

    def pose(self, item: Any) -> TaggedWords:
        """Make an example from a text, which is split into words, or from a list of words."""
        if isinstance(item, str):
            return TaggedWords.from_text(item)
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
        pieces_of, ids = PiecesOfWords(tokenizer), {name: number for number, name in enumerate(self.labels)}
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
        return count_hidden_words(tokenizer, examples, features, self._known_scheme(), self.strict)

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
        return span_table(gold_tags(examples), _tags(predictions), self._known_scheme(), self.strict)

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
