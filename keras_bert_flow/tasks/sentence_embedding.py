"""Sentence embedding: vectors of texts whose cosine measures similarity, learnt from text pairs."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
import scipy  # its submodules are loaded when they are used

from keras_bert_flow.tasks.core.metrics import CORRELATIONS, mean_measure, regression_metrics
from keras_bert_flow.tasks.core.task import Features, Measure, Prediction, Task, count_joined, join_texts
from keras_bert_flow.tasks.core.texts import (
    TextExample,
    are_labelled,
    check_main_metric,
    labels_of,
    make_text_example,
    pair_numbers,
    read_examples,
    refuse_labels,
)
from keras_bert_flow.tasks.formats.tables import read_score, require_different_scores
from keras_bert_flow.tasks.settings import SentenceEmbeddingSettings
from keras_bert_flow.text.tokenizers.tokenizer import Tokenizer

# Retrieval ranks: rank the second text of each pair among all second texts, by cosine with the first.

ROWS_AT_ONCE = 512  # with 100,000 candidates, 400 MB of cosines


@dataclass(frozen=True)
class Ranking:
    """Rank of each pair's second text, int and float64, (pairs,).

    Attributes:
        ranks: rank of the pair's own second text, from 1. Ties are in table order, so that the mean over pairs whose
            second texts are tied is that of a random order.
        nearest: index of the pair whose second text ranks first.
        cosines: cosine of the pair.
        nearest_cosines: cosine with the text that ranks first.
    """

    ranks: np.ndarray
    nearest: np.ndarray
    cosines: np.ndarray
    nearest_cosines: np.ndarray


def rank_partners(vectors: np.ndarray, numbers: np.ndarray) -> Ranking:
    """Rank each pair's second text among all distinct second texts.

    A second text is not a candidate for a pair where it would not be wrong: if it is the pair's first text, or in
    another pair with a text of this one.

    Args:
        vectors: float, (pairs, 2, hidden). Vectors of both texts.
        numbers: int, (pairs, 2). Numbers of the texts, of which equal strings have the same.
    """
    parts = []
    for cosines, own, places in _compare(vectors, numbers):
        rows = np.arange(len(own))
        mine = cosines[rows, own][:, None]
        is_before = (cosines > mine) | ((cosines == mine) & (np.arange(cosines.shape[1]) < own[:, None]))
        first = cosines.argmax(axis=1)
        parts.append((1 + is_before.sum(axis=1), places[first], mine[:, 0], cosines[rows, first]))
    return Ranking(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def pair_cosines(vectors: np.ndarray) -> np.ndarray:
    """Return the cosine of each pair of vectors, (pairs,), from (pairs, 2, hidden)."""
    units = _unit_length(vectors)
    return (units[:, 0] * units[:, 1]).sum(axis=-1).clip(-1, 1)


def _compare(vectors: np.ndarray, numbers: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield, for blocks of pairs, the cosines with every candidate, and the column of each pair's own.

    Yields:
        cosines, (pairs, candidates), -inf where one is left out; own, the column of each pair's second text; places,
        (candidates,), the first pair in which each candidate occurs.
    """
    units = _unit_length(vectors)
    places = np.sort(np.unique(numbers[:, 1], return_index=True)[1])
    columns = {int(number): column for column, number in enumerate(numbers[places, 1])}
    beside = defaultdict(set)  # first text → columns of its second texts
    for first, second in numbers.tolist():
        beside[first].add(columns[second])
    # Equal vectors are multiplied once: in a matrix product, equal columns may be rounded differently.
    candidates, column_of = np.unique(units[places, 1], axis=0, return_inverse=True)
    column_of = column_of.reshape(-1)  # (candidates, 1) in NumPy 2.0
    for start in range(0, len(numbers), ROWS_AT_ONCE):
        chosen = numbers[start : start + ROWS_AT_ONCE].tolist()
        cosines = (units[start : start + ROWS_AT_ONCE, 0] @ candidates.T).clip(-1, 1)[:, column_of]
        own = np.array([columns[second] for _, second in chosen])
        for row, (first, second) in enumerate(chosen):
            left_out = beside[first] | beside.get(second, set()) | {columns.get(first, own[row])}
            cosines[row, list(left_out - {own[row]})] = -np.inf
        yield cosines, own, places


def _unit_length(vectors: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.where(lengths == 0, 1, lengths)


CONTRASTIVE, COSINE = "contrastive", "cosine"
BELONG = True  # the label of two texts that belong together
METRICS = {CONTRASTIVE: ("mrr", "accuracy"), COSINE: CORRELATIONS}
MAIN_METRICS: dict[str, Any] = {CONTRASTIVE: "mrr", COSINE: "spearman"}
DEEPEST = 10  # highest rank that counts for `mrr`
COLLAPSED = 0.01  # share of the range of the labels


@final
@dataclass(frozen=True)
class SentenceEmbedding(SentenceEmbeddingSettings, Task):
    """Sentence embedding, learnt from a table of text pairs as read by `tables.read_table`.

    With the objective `contrastive`, the two texts of a row belong together, and the second texts of the other rows in
    a batch are negatives; the table has no labels. With `cosine`, each row has a similarity score. The label of an
    example is `BELONG`, a score from 0 to 1, or None.
    The model returns {"logits": (rows, sequences_per_row, hidden)}, the vectors. A prediction is {"embedding"} for one
    text and {"cosine"} for two; for a pair that belongs together also {"rank", "nearest", "nearest_cosine"}: the rank
    of the second text among those of the table by cosine with the first, and which text is nearest. For scores, `score`
    returns their Spearman and Pearson correlation with the cosines; for pairs, `mrr`, the mean of 1 / rank (0 for ranks
    above 10), and `accuracy`, the share of ranks of 1.
    Two texts are the same text if their strings are equal, as written in the table. Different texts that are equal to
    the model, as after truncation, are each other's negatives, and share a vector; `count_unreachable` counts them.

    Attributes:
        objective: contrastive or cosine.
        text, text_pair, label: columns; numbers from 0 if there is no header. Only `cosine` has a label.
        header: the first line of a .tsv or .csv names the columns.
        lowest, highest: scores of the table for unrelated and for equivalent texts: a cosine of 0 and of 1.
        scale: factor of the cosines in the contrastive objective.
        pooling, normalize: of `TextEmbedder`; None takes the setting of the model that training starts from, if any.
        main_metric: mrr or accuracy; spearman or pearson. None: `learn` chooses the first of the objective's.
        labels: always empty: there are no classes.
    Source: Reimers and Gurevych 2019, arXiv:1908.10084; Henderson et al. 2017, section 4.4, arXiv:1705.00652. Scores,
    scale and ranks are as in `CosineSimilarityLoss`, `MultipleNegativesRankingLoss` and `InformationRetrievalEvaluator`
    of `sentence_transformers`.
    """

    baseline: ClassVar[str] = "same vector for every text"
    headings: ClassVar[Mapping[str, str]] = {
        "mrr": "MRR@10",
        "accuracy": "partner found first %",
        "spearman": "Spearman correlation",
        "pearson": "Pearson correlation",
    }

    labels: tuple[str, ...] = ()

    def __post_init__(self):
        if self.objective not in METRICS:
            raise ValueError(f"`objective` must be one of {', '.join(METRICS)}. Received: {self.objective!r}.")
        if self.main_metric is not None:
            check_main_metric(self.main_metric, METRICS[self.objective])
        refuse_labels(self.labels, self.kind)
        if not self.lowest < self.highest:
            raise ValueError(
                f"`lowest` must be less than `highest`. Received: {self.lowest} and {self.highest}. Swap them."
            )

    def read(self, path: str | Path, max_examples: int | None = None, has_labels: bool = True) -> list[TextExample]:
        columns = [self.label] if has_labels and self.objective == COSINE else []
        lowest, highest = self.lowest, self.highest
        examples = read_examples(
            *(path, (self.text, self.text_pair), columns, self.header, max_examples),
            read_label=lambda place, values: (
                (read_score(place, self.label, values[0], lowest, highest) - lowest) / (highest - lowest)
            ),
            keeps_blanks=not has_labels,
        )
        if not has_labels or self.objective == COSINE:
            return examples
        return [replace(example, label=BELONG) for example in examples]

    def make_example(self, item: Any) -> TextExample:
        """Make an example from one text or two."""
        is_text = isinstance(item, str) or (isinstance(item, Mapping) and set(item) == {"text"})
        return make_text_example(item, is_pair=not is_text)

    def learn(self, examples: Sequence[TextExample]) -> "SentenceEmbedding":
        labels = labels_of(examples)
        if self.objective == COSINE:
            require_different_scores(labels, examples[0].place)
        elif len({example.text_pair for example in examples}) < 2:
            raise ValueError(
                "A training table of pairs must have at least two different second texts. "
                f"Received: {len(examples)} examples from {examples[0].place}. Check the columns, or read more rows."
            )
        return replace(self, main_metric=self.main_metric or MAIN_METRICS[self.objective])

    def encode(self, tokenizer: Tokenizer, examples: Sequence[TextExample], sequence_length: int) -> Features:
        """Encode each labelled pair as one row; without labels, each text as one row."""
        encoded = tokenizer.encode_batch(_texts_of(examples))
        token_ids = [join_texts(tokenizer, ids, None, sequence_length)[0] for ids in encoded]
        places = np.arange(len(examples), dtype=np.int32)
        is_labelled = bool(examples) and are_labelled(examples)
        return Features(
            token_ids=token_ids,
            first_lengths=np.array([len(ids) for ids in token_ids], dtype=np.int32),
            examples=places if is_labelled else places.repeat([len(example.inputs) for example in examples]),
            labels={"logits": _make_labels(examples)} if is_labelled else {},
            sequences_per_row=2 if is_labelled else 1,
            keeps_axis=True,
            sequence_length=sequence_length,
            full_lengths=np.array([count_joined(tokenizer, ids) for ids in encoded], dtype=np.int64),
        )

    def count_unreachable(
        self, tokenizer: Tokenizer, examples: Sequence[TextExample], features: Features
    ) -> dict[str, dict[str, int]]:
        """Count the texts that have the token ids of another text, cut off (cut) or from the start (folded)."""
        shown = {text: ids.tobytes() for text, ids in zip(_texts_of(examples), features.token_ids, strict=True)}
        sharing = Counter(shown.values())
        alike = [text for text, ids in shown.items() if sharing[ids] > 1]
        whole = [ids.tobytes() for ids in tokenizer.encode_batch(alike)]
        sharing = Counter(whole)
        folded = sum(sharing[ids] > 1 for ids in whole)
        counts = {reason: count for reason, count in (("cut", len(alike) - folded), ("folded", folded)) if count}
        return {"texts": {"total": len(shown)} | counts} if counts else {}

    def decode(
        self, outputs: Mapping[str, Any], features: Features, examples: Sequence[TextExample]
    ) -> list[Prediction]:
        vectors = _vectors_of(outputs, features)
        if not features.labels:
            return _describe(vectors[:, 0], features.examples, len(examples))
        order = np.argsort(features.examples)
        vectors, labels = vectors[order], features.labels["logits"][order]
        if not _belong(examples):
            return [{"cosine": cosine} for cosine in pair_cosines(vectors).tolist()]
        found = rank_partners(vectors, labels)
        columns = (found.cosines, found.ranks, found.nearest, found.nearest_cosines)
        return [
            {"cosine": cosine, "rank": rank, "nearest": examples[nearest].text_pair, "nearest_cosine": best}
            for cosine, rank, nearest, best in zip(*(column.tolist() for column in columns), strict=True)
        ]

    def score(self, examples: Sequence[TextExample], predictions: Sequence[Prediction]) -> dict[str, float]:
        if _belong(examples):
            return {name: float(np.mean(_gains(name, predictions))) for name in METRICS[CONTRASTIVE]}
        metrics = regression_metrics(*pair_numbers(examples, predictions, "cosine"))
        return {name: metrics[name] for name in METRICS[COSINE]}

    def guess(self, training: Sequence[TextExample], examples: Sequence[TextExample]) -> list[Prediction]:
        """Predict the same vector for every text: all cosines are 1, and second texts rank in table order."""
        if not _belong(examples):
            return [{"cosine": 1.0} for _ in examples]
        ranks = rank_partners(np.ones((len(examples), 2, 1)), _make_labels(examples)).ranks
        nearest = examples[0].text_pair
        return [{"cosine": 1.0, "rank": rank, "nearest": nearest, "nearest_cosine": 1.0} for rank in ranks.tolist()]

    def show(self, example: TextExample) -> dict[str, Any]:
        if example.label is BELONG:
            return {"text": example.text, "gold": example.text_pair}
        return example.inputs | {"gold": example.label}

    def review(self, example: TextExample, prediction: Prediction) -> dict[str, Any] | None:
        cosine = prediction["cosine"]
        if example.label is BELONG:
            if prediction["rank"] == 1:
                return None
            distance = prediction["nearest_cosine"] - cosine
            return self.show(example) | {"predicted": prediction["nearest"], "distance": distance}
        if cosine == example.label:
            return None
        distance = abs(cosine - example.label)
        return self.show(example) | {"predicted": cosine, "distance": distance}

    def is_collapsed(self, examples: Sequence[TextExample], predictions: Sequence[Prediction]) -> bool:
        """Return whether one text is nearest to all, or cosines span at most a hundredth of the range of scores."""
        if _belong(examples):
            second_texts = {example.text_pair for example in examples}
            return len(second_texts) > 1 and len({prediction["nearest"] for prediction in predictions}) == 1
        labels, cosines = pair_numbers(examples, predictions, "cosine")
        return bool(np.ptp(labels) > 0 and np.ptp(cosines) <= COLLAPSED * np.ptp(labels))

    def make_measure(self, examples: Sequence[TextExample], predictions: Sequence[Prediction]) -> Measure:
        metric = self.main_metric or MAIN_METRICS[self.objective]
        if _belong(examples):
            return mean_measure(_gains(metric, predictions))
        labels, cosines = pair_numbers(examples, predictions, "cosine")
        return lambda chosen: regression_metrics(labels[chosen], cosines[chosen])[metric]

    @property
    def model_options(self) -> dict[str, Any]:
        chosen = {"pooling": self.pooling, "normalize": self.normalize}
        options = {name: value for name, value in chosen.items() if value is not None}
        return {"objective": self.objective, "scale": self.scale} | options

    def measure_loss(self, outputs: Mapping[str, Any], features: Features) -> float:
        """Return the mean squared error of cosines; for pairs, the cross-entropy over all second texts, not a batch."""
        vectors, labels = _vectors_of(outputs, features), features.labels["logits"]
        if labels.ndim == 1:
            return float(np.mean((pair_cosines(vectors) - labels) ** 2))
        losses = []
        for cosines, own, _ in _compare(vectors, labels):
            logits = self.scale * cosines
            losses.append(scipy.special.logsumexp(logits, axis=1) - logits[np.arange(len(own)), own])
        return float(np.concatenate(losses).mean())


def _make_labels(examples: Sequence[TextExample]) -> np.ndarray:
    """Return the scores, float32, (rows,); for pairs that belong together, the numbers of their texts, (rows, 2)."""
    if _belong(examples):
        numbers: dict[str, int] = {}
        texts = [numbers.setdefault(text, len(numbers)) for text in _texts_of(examples)]
        return np.array(texts, dtype=np.int32).reshape(-1, 2)
    return np.array([example.label for example in examples], dtype=np.float32)


def _texts_of(examples: Sequence[TextExample]) -> list[str]:
    return [text for example in examples for text in example.inputs.values()]


def _vectors_of(outputs: Mapping[str, Any], features: Features) -> np.ndarray:
    """Return the vectors that the model returned, float64, (rows, sequences_per_row, hidden)."""
    vectors = np.asarray(outputs["logits"], dtype=np.float64) if len(features) else np.zeros((0, 1, 1))
    if vectors.ndim != 3 or vectors.shape[:2] != (len(features), features.sequences_per_row):
        raise ValueError(
            f"`logits` must be ({len(features)}, {features.sequences_per_row}, hidden). Received: {vectors.shape}. "
            "Predict every row with the model of this task."
        )
    if not np.isfinite(vectors).all():
        raise ValueError(
            "Vectors must be finite. Received: nan or infinity: the fine-tuning diverged. Lower its learning rate."
        )
    # Rounding in a batch depends on its shape: without this, it would rank texts that are equal to the model.
    firsts: dict[bytes, int] = {}
    same = [firsts.setdefault(ids.tobytes(), place) for place, ids in enumerate(features.token_ids)]
    return vectors.reshape(-1, vectors.shape[-1])[same].reshape(vectors.shape)


def _describe(vectors: np.ndarray, owners: np.ndarray, count: int) -> list[Prediction]:
    """Return the vector of each example of one text, and the cosine of each example of two."""
    rows: list[list[int]] = [[] for _ in range(count)]
    for row, owner in enumerate(owners):
        rows[owner].append(row)
    return [
        {"embedding": vectors[texts[0]].astype(np.float32).tolist()}
        if len(texts) == 1
        else {"cosine": float(pair_cosines(vectors[texts][None])[0])}
        for texts in rows
    ]


def _belong(examples: Sequence[TextExample]) -> bool:
    return labels_of(examples)[0] is BELONG


def _gains(metric: str, predictions: Sequence[Prediction]) -> np.ndarray:
    """Return the contribution of each pair to a ranking metric."""
    ranks = np.array([prediction["rank"] for prediction in predictions])
    return (ranks == 1).astype(float) if metric == "accuracy" else (ranks <= DEEPEST) / ranks
