"""TF-IDF baseline: features, a linear model chosen by cross-validation, and the limits of its work."""

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from threadpoolctl import threadpool_limits

from keras_bert_flow.tasks.core.metrics import many_classes
from keras_bert_flow.tasks.core.task import Prediction, Task
from keras_bert_flow.tasks.core.texts import TextExample
from keras_bert_flow.text.tokenizers.normalization import normalize_text
from keras_bert_flow.text.tokenizers.wordpiece import WordPieceTokenizer
from keras_bert_flow.text.vocabulary import SPECIAL_PIECES

# Sparse TF-IDF features of texts and text pairs, for linear models.

MOST_FEATURES = 100_000  # columns: the most frequent words and bigrams, a quarter as many for pairs

# A text, and the second text of a pair; both as words joined by spaces.
Words = tuple[str, str | None]


class WordFeatures(TransformerMixin, BaseEstimator):
    """TF-IDF vectors of word n-grams, with sublinear term frequency and unit length.

    A pair has the vectors a and b of both texts, `|a - b|`, for what only one of them contains, and `a * b`, for what
    both contain. A linear model cannot compute from a and b alone whether a word of one text is in the other. Three
    dense columns follow: the cosine of a and b, and the share of each vector's weight on features of the other, one of
    which is high if a text follows from a longer one.

    Args:
        longest: most words of an n-gram.
        most_features: most words and n-grams, the most frequent ones; a quarter as many for pairs.
    """

    def __init__(self, longest: int = 1, most_features: int = MOST_FEATURES):
        self.longest = longest
        self.most_features = most_features

    def fit(self, texts: Sequence[Words], y=None) -> "WordFeatures":
        """Learn the vocabulary; raises ValueError if no text has a word."""
        is_pair = bool(texts) and texts[0][1] is not None
        self.vectorizer_ = TfidfVectorizer(
            tokenizer=str.split,
            token_pattern=None,
            lowercase=False,
            sublinear_tf=True,
            ngram_range=(1, self.longest),
            max_features=self.most_features // (4 if is_pair else 1),
        )
        self.vectorizer_.fit(text for pair in texts for text in pair if text is not None)
        return self

    def transform(self, texts: Sequence[Words]) -> sparse.csr_matrix:
        """Return one row per text or pair, float64."""
        first = self.vectorizer_.transform([text for text, _ in texts])
        if not texts or texts[0][1] is None:
            return first
        second = self.vectorizer_.transform([text for _, text in texts])
        both = first.multiply(second).tocsr()
        dense = [both.sum(axis=1)]
        for one, other in ((first, second), (second, first)):  # an empty row shares nothing
            total = np.asarray(one.sum(axis=1)).ravel()
            shared = np.asarray(one.multiply(other.sign()).sum(axis=1)).ravel()
            dense.append(np.divide(shared, total, out=np.zeros_like(total), where=total > 0))
        columns = np.hstack([np.asarray(column).reshape(-1, 1) for column in dense])
        return sparse.hstack([first, second, abs(first - second), both, columns], format="csr")


# Bounds on the memory and time of linear models with many classes, by counted work.
#
# The bounds depend on the data alone and not on the speed of a machine, so equal inputs give equal results.

MOST_WEIGHTS = 5_000_000  # features times classes: L-BFGS keeps about 24 float64 matrices of that size, 1 GB
LEAST_FEATURES = 1_000  # with fewer words a baseline is none
LEAST_CLASS_ROWS = 3  # per class
MOST_SPARSE_WORK = 3e10  # multiplications, of which one core does 3e8 to 7e8 a second; most fits end after half of them
MOST_DENSE_WORK = 1e12  # of dense matrices, 2e10 a second; the same
MOST_LOGITS = 2_000_000  # rows times classes that are decoded to choose by
FEW_ITERATIONS = 50  # where all of them would leave too few rows
SOFTMAX = 20  # multiplications that cost as much as an exponential
SAMPLE = 1_000  # rows to count words in


@dataclass(frozen=True)
class Limits:
    """What a fit may use.

    Attributes:
        features: most columns.
        rows: most rows to fit on; 0 if the model has to be left out.
        choosing_rows: most rows of the cross-validation; 0 if there is none.
        iterations: most iterations of the solver.
        is_less: whether the solver is stopped early or has fewer columns than it could use.
    """

    features: int
    rows: int
    choosing_rows: int
    iterations: int
    is_less: bool = False


def limit_words(examples: Sequence[TextExample], outputs: int, features: int, iterations: int, fits: int) -> Limits:
    """Return the limits of a linear model on word n-grams.

    Args:
        examples: the training table.
        outputs: number of weights per feature: of classes, or 1.
        features, iterations: the most that the model needs.
        fits: number of fits of the cross-validation, in rows of the whole.
    """
    sample = list(islice(examples, SAMPLE))
    words = sum(len(f"{example.text} {example.text_pair or ''}".split()) for example in sample) / max(len(sample), 1)
    parts = 4 if sample and sample[0].text_pair is not None else 2  # of bigrams and single words, and of both texts
    features = min(features, MOST_WEIGHTS // outputs)
    if features < LEAST_FEATURES:
        return Limits(features, 0, 0, iterations)
    return _limit_rows(MOST_SPARSE_WORK, (parts * words + SOFTMAX) * outputs, outputs, features, iterations, fits)


def limit_vectors(hidden_dim: int, outputs: int, iterations: int, fits: int) -> Limits:
    """Return the limits of a linear head on dense vectors; arguments as for `limit_words`."""
    if hidden_dim * outputs > MOST_WEIGHTS:
        return Limits(hidden_dim, 0, 0, iterations)
    return _limit_rows(MOST_DENSE_WORK, (hidden_dim + SOFTMAX) * outputs, outputs, hidden_dim, iterations, fits)


def _limit_rows(work: float, row_work: float, outputs: int, features: int, iterations: int, fits: int) -> Limits:
    enough, needed = LEAST_CLASS_ROWS * outputs, iterations
    choosing_rows = int(min(work / (row_work * iterations * fits), MOST_LOGITS / outputs))
    rows = int(work / (row_work * iterations))
    if rows < max(enough, choosing_rows):
        iterations = FEW_ITERATIONS
        rows = int(work / (row_work * iterations))
    choosing_rows *= choosing_rows >= enough
    return Limits(features, rows * (rows >= enough), choosing_rows, iterations, iterations < needed)


@contextmanager
def bounded_fits() -> Iterator[None]:
    """Fit on one thread, and without the warnings of scikit-learn that do not concern a user.

    On several threads, BLAS waits for cores that the threads of Keras hold: fits of a quarter of a second took ten.
    """
    with threadpool_limits(1), many_classes(), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a fit that is stopped early is close enough
        yield


LONGEST = (1, 2)  # words of an n-gram
# Kind of task → C of logistic regression, or 1 / alpha of ridge regression; the middle with too few rows to choose.
STRENGTHS = {
    "classification": (1.0, 3.0, 10.0, 30.0, 100.0),
    "multi_label": (1.0, 3.0, 10.0, 30.0, 100.0),
    "regression": (0.03, 0.1, 0.3, 1.0, 3.0),
}
FOLDS = 3
LEAST_ROWS = 2 * FOLDS
MOST_CHARACTERS = 100_000_000  # of the rows that are fitted: 400,000 rows of MNLI have 70 million
MOST_CHOOSING_ROWS = 10_000  # for cross-validation, which fits thirty models
MOST_CHOOSING_PAIRS = 5_000  # their rows are four times as wide
MOST_CHOOSING_CHARACTERS = 10_000_000
MOST_DECISIONS = 300_000  # rows times labels in the cross-validation of a multi-label task, but at least 1,000 rows
MOST_ITERATIONS = 200
NEVER = -25.0  # logit of a class or label that no training row has: a probability of 1e-11
SHORTEST = 8  # tokens: examples are encoded only for their labels
CHOOSING_FITS = 20  # that the cross-validation costs as much as: thirty, of two thirds of the rows

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class WordAnswers:
    """Predictions of the baseline, and how it was chosen.

    Attributes:
        predictions: name of each table → one prediction per example.
        settings: longest (words of an n-gram), strength (C, or 1 / alpha), score (the mean of the main metric over the
            folds; None without cross-validation), and the numbers of rows that it was chosen with and fitted on.
    """

    predictions: dict[str, list[Prediction]]
    settings: dict[str, Any]


def answer_from_words(
    task: Task, training: Sequence[Any], tables: Mapping[str, Sequence[Any]], seed: int = 1
) -> WordAnswers | None:
    """Fit the TF-IDF baseline on the training table and predict other tables; None for tasks that do not label texts.

    Classes are fitted by multinomial logistic regression, labels by one logistic regression each with the task's own
    threshold, and numbers by ridge regression. The baseline reads the whole text, of which a network may see only the
    first tokens, split into words as in BERT, without case and accents. Word n-grams (1, or 1 and 2) and regularisation
    are chosen by the task's main metric in stratified 3-fold cross-validation; ties go to the simplest. Predictions are
    decoded and scored like those of a network.
    It is fitted on all training rows up to 100 million characters, on a random subset of a larger table, and chosen on
    at most 10,000 rows (5,000 pairs) and 10 million characters. With fewer than two classes, or without any word, it
    predicts `task.guess`. With tens of classes or more the memory and the work are bounded too, to 1 GB and about a
    minute: see `limit_words`. What is less for that is said in a warning and stands in `settings`; with so many classes
    that even the most frequent words do not fit, the baseline is left out, and the result is None.

    Args:
        task: a task with learnt labels.
        training: the labelled examples that the network is trained on.
        tables: name → examples to predict.
        seed: seed of the folds and subsets.
    """
    if task.kind not in FITS:
        return None
    rng = np.random.default_rng(seed)
    # Weights per word: of a class, or of a label, of which each has a model of its own.
    outputs = len({example.label for example in training}) if task.kind == "classification" else len(task.labels)
    outputs = 1 if task.kind == "classification" and outputs <= 2 else max(1, outputs)
    limits = limit_words(training, outputs, MOST_FEATURES, MOST_ITERATIONS, CHOOSING_FITS)
    if not limits.rows:
        _logger.warning("The TF-IDF baseline is left out: %s classes or labels are too many for it.", f"{outputs:,}")
        return None
    fitted = _subset(training, min(len(training), limits.rows), MOST_CHARACTERS, rng)
    most = MOST_CHOOSING_ROWS if training[0].text_pair is None else MOST_CHOOSING_PAIRS
    if task.kind == "multi_label":
        most = min(most, max(1000, MOST_DECISIONS // len(task.labels)))
    limited = _describe_limits(limits, len(training), most, outputs)
    if limited:
        _logger.warning("The TF-IDF baseline for %s", limited)
    chosen_with = _subset(fitted, min(most, max(1, limits.choosing_rows)), MOST_CHOOSING_CHARACTERS, rng)
    if len(chosen_with) < LEAST_ROWS:
        strengths = STRENGTHS[task.kind]
        chosen_with, longest, strength, score = [], LONGEST[0], strengths[len(strengths) // 2], None
    else:
        longest, strength, score = choose(task, chosen_with, rng, limits)
    model = _Model(task, fitted, longest, limits)
    predictions = {
        name: model.predict(examples, model.transform(examples), strength) for name, examples in tables.items()
    }
    counts = {"choosing_examples": len(chosen_with), "fitted_examples": len(fitted)}
    if limited:
        counts |= {"features": limits.features, "iterations": limits.iterations}
    return WordAnswers(predictions, {"longest": longest, "strength": strength, "score": score} | counts)


def _describe_limits(limits: Limits, rows: int, most: int, outputs: int) -> str:
    """Return what the limits take away; empty if nothing."""
    found = []
    if limits.rows < rows:
        found.append(f"is fitted on {limits.rows:,} of {rows:,} rows")
    if limits.features < MOST_FEATURES:
        found.append(f"has {limits.features:,} words")
    if limits.iterations < MOST_ITERATIONS:
        found.append(f"stops after {limits.iterations} iterations")
    if limits.choosing_rows < min(most, rows):
        rows_ = f"is chosen by {limits.choosing_rows:,} rows" if limits.choosing_rows else "has default settings"
        found.append(rows_)
    return f"{outputs:,} classes or labels {', '.join(found)}, to stay within a minute and 1 GB." if found else ""


def choose(
    task: Task, examples: Sequence[TextExample], rng: np.random.Generator, limits: Limits
) -> tuple[int, float, float]:
    """Return the n-gram length and strength with the highest mean of the main metric over the folds, and that mean."""
    folds = assign_folds(_targets(task, examples), rng)
    strengths = STRENGTHS[task.kind]
    scores = np.zeros((len(LONGEST), len(strengths)))
    for fold in range(FOLDS):
        training = [example for example, number in zip(examples, folds, strict=True) if number != fold]
        held_out = [example for example, number in zip(examples, folds, strict=True) if number == fold]
        for row, longest in enumerate(LONGEST):
            model = _Model(task, training, longest, limits)
            asked = model.transform(held_out)
            for column, strength in enumerate(strengths):
                found = task.score(held_out, model.predict(held_out, asked, strength))
                scores[row, column] += found[task.main_metric] / FOLDS
    best_row, best_column = map(int, np.unravel_index(scores.argmax(), scores.shape))  # the first of ties
    return LONGEST[best_row], strengths[best_column], float(scores[best_row, best_column])


def assign_folds(targets: np.ndarray, rng: np.random.Generator, count: int = FOLDS) -> np.ndarray:
    """Assign each row to a stratified fold, which has its share of every class, however rare."""
    strata = targets if np.issubdtype(targets.dtype, np.integer) else np.zeros(len(targets), int)
    order = rng.permutation(len(strata))
    order = order[np.argsort(strata[order], kind="stable")]
    folds = np.empty(len(strata), dtype=int)
    folds[order] = np.arange(len(strata)) % count
    return folds


class _Model:
    """The features of a training table, and predictions from them at any regularisation strength."""

    def __init__(self, task: Task, training: Sequence[TextExample], longest: int, limits: Limits):
        self._task, self._training, self._iterations = task, training, limits.iterations
        self._targets = _targets(task, training)
        words = [_words(example) for example in training]
        has_words = any(text for pair in words for text in pair)
        is_constant = task.kind == "classification" and len(np.unique(self._targets)) < 2
        self._features = None if is_constant or not has_words else WordFeatures(longest, limits.features).fit(words)
        self._rows = self._features.transform(words) if self._features else None

    def transform(self, examples: Sequence[TextExample]) -> sparse.csr_matrix | None:
        """Return the features of examples, shared by all strengths; None if there is nothing to learn from."""
        return self._features.transform([_words(example) for example in examples]) if self._features else None

    def predict(self, examples: Sequence[TextExample], asked, strength: float) -> list[Prediction]:
        """Predict examples from what `transform` returns for them."""
        if asked is None:
            return self._task.guess(self._training, examples)
        fit = FITS[self._task.kind]
        with bounded_fits():
            logits = fit(self._task, self._rows, self._targets, asked, strength, self._iterations)
        features = self._task.encode(WordPieceTokenizer(SPECIAL_PIECES), examples, SHORTEST)
        return self._task.decode({"logits": logits}, features, examples)


def _fit_classes(task: Task, rows, targets: np.ndarray, asked, strength: float, iterations: int) -> np.ndarray:
    model = LogisticRegression(C=strength, max_iter=iterations).fit(rows, targets)
    logits = np.full((asked.shape[0], len(task.labels)), NEVER)
    logits[:, model.classes_] = model.predict_log_proba(asked).clip(NEVER)
    return logits


def _fit_labels(task: Task, rows, targets: np.ndarray, asked, strength: float, iterations: int) -> np.ndarray:
    columns = []
    for marks in targets.T:
        if np.ptp(marks) == 0:  # no row, or every row, has the label
            columns.append(np.full(asked.shape[0], -NEVER if marks[0] else NEVER))
        else:
            model = LogisticRegression(C=strength, solver="liblinear", max_iter=iterations, random_state=0)
            columns.append(model.fit(rows, marks).decision_function(asked))
    return np.stack(columns, axis=1)


def _fit_numbers(task: Task, rows, targets: np.ndarray, asked, strength: float, iterations: int) -> np.ndarray:
    model = Ridge(alpha=1 / strength, solver="sparse_cg", max_iter=iterations)
    return model.fit(rows, targets.astype(np.float64)).predict(asked)


FITS = {"classification": _fit_classes, "multi_label": _fit_labels, "regression": _fit_numbers}


def _subset(examples: Sequence[TextExample], most: int, most_characters: int, rng) -> Sequence[TextExample]:
    """Return random examples within both limits, in the order of the table; all examples if they fit."""
    lengths = np.array([len(example.text) + len(example.text_pair or "") for example in examples])
    if len(examples) <= most and lengths.sum() <= most_characters:
        return examples
    order = rng.permutation(len(examples))[:most]
    order = order[: max(1, int(np.searchsorted(lengths[order].cumsum(), most_characters, side="right")))]
    return [examples[number] for number in np.sort(order)]


def _words(example: TextExample) -> Words:
    second = None if example.text_pair is None else normalize_text(example.text_pair, cased=False)
    return normalize_text(example.text, cased=False), second


def _targets(task: Task, examples: Sequence[TextExample]) -> np.ndarray:
    return task.encode(WordPieceTokenizer(SPECIAL_PIECES), examples, SHORTEST).labels["logits"]
