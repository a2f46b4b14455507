"""The baseline without a network equals scikit-learn's own pipeline and grid search on the same rows."""

import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.model_selection import GridSearchCV, PredefinedSplit
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import Pipeline

from keras_bert_flow.tasks.baselines import word_baseline
from keras_bert_flow.tasks.baselines import word_baseline as baseline_module
from keras_bert_flow.tasks.baselines.word_baseline import (
    CHOOSING_FITS,
    LONGEST,
    MOST_FEATURES,
    MOST_ITERATIONS,
    MOST_SPARSE_WORK,
    STRENGTHS,
    WordFeatures,
    answer_from_words,
    assign_folds,
    limit_words,
)
from keras_bert_flow.tasks.core.texts import TextExample
from keras_bert_flow.tasks.registry import make_task
from keras_bert_flow.text.tokenizers.normalization import normalize_text
from tests.tasks.kinds import CASES, make_case

DATA = Path(os.environ.get("KBF_TEST_DATA", "none"))
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="KBF_TEST_DATA is not set")


def read_task(kind: str, train: str, dev: str, rows: int, **fields):
    task = make_task(kind, **fields)
    training = task.read(DATA / train, rows)
    return task.learn(training), training, task.read(DATA / dev, rows)


@pytest.mark.slow
@needs_data
def test_classes_equal_a_grid_search_of_scikit_learn():
    columns = {"header": False, "text": "0", "label": "1"}
    task, training, dev = read_task("classification", "sst2/train.tsv", "sst2/dev.tsv", 300, **columns)
    found = answer_from_words(task, training, {"dev": dev}, seed=3)
    labels = np.array([task.labels.index(example.label) for example in training])
    words = {"preprocessor": partial(normalize_text, cased=False), "tokenizer": str.split, "token_pattern": None}
    vectors = TfidfVectorizer(sublinear_tf=True, **words)
    search = GridSearchCV(
        Pipeline([("vectors", vectors), ("model", LogisticRegression(max_iter=200))]),
        {"vectors__ngram_range": [(1, longest) for longest in LONGEST], "model__C": STRENGTHS["classification"]},
        cv=PredefinedSplit(assign_folds(labels, np.random.default_rng(3))),
    ).fit([example.text for example in training], labels)
    settings = found.settings
    assert settings["score"] == pytest.approx(search.best_score_)
    scores = {
        (params["vectors__ngram_range"][1], params["model__C"]): score
        for params, score in zip(search.cv_results_["params"], search.cv_results_["mean_test_score"], strict=True)
    }
    assert scores[settings["longest"], settings["strength"]] == pytest.approx(search.best_score_)
    chosen = search.best_estimator_.set_params(
        vectors__ngram_range=(1, settings["longest"]), model__C=settings["strength"]
    ).fit([example.text for example in training], labels)
    shares = chosen.predict_proba([example.text for example in dev])
    answers = [list(prediction["probabilities"].values()) for prediction in found.predictions["dev"]]
    np.testing.assert_allclose(answers, shares, atol=1e-4)
    assert task.score(dev, found.predictions["dev"])["accuracy"] > 0.55


@needs_data
def test_pairs_of_texts_are_told_apart():
    """Words of both texts alone give a correlation of 0.2; what they share gives most of what there is."""
    columns = {"text": "sentence1", "text_pair": "sentence2", "label": "score"}
    task, training, dev = read_task("regression", "stsb/train.tsv", "stsb/dev.tsv", 400, **columns)
    found = answer_from_words(task, training, {"dev": dev})
    scores = [prediction["score"] for prediction in found.predictions["dev"]]
    gold = [example.label for example in dev]
    assert task.score(dev, found.predictions["dev"])["spearman"] == pytest.approx(spearmanr(gold, scores).statistic)
    assert spearmanr(gold, scores).statistic > 0.6


def test_pair_features_are_the_vectors_and_what_tells_them_apart():
    texts = [("a b", "b c"), ("a", "a"), ("c", "d"), ("", "a")]
    rows = WordFeatures(1).fit(texts).transform(texts).toarray()
    vectors = TfidfVectorizer(tokenizer=str.split, token_pattern=None, sublinear_tf=True)
    vectors.fit([text for pair in texts for text in pair])
    first, second = (vectors.transform(side).toarray() for side in zip(*texts, strict=True))
    expected = np.hstack([first, second, abs(first - second), first * second])
    np.testing.assert_allclose(rows[:, :-3], expected)
    np.testing.assert_allclose(rows[:, -3], (first * second).sum(axis=1))
    shares = [row[names].sum() / row.sum() for row, names in ((first[0], second[0] > 0), (second[0], first[0] > 0))]
    np.testing.assert_allclose(rows[:, -2:], [shares, [1, 1], [0, 0], [0, 0]])


def test_labels_equal_one_versus_rest_of_scikit_learn():
    case = make_case("multi_label", 60)
    found = answer_from_words(case.task, case.training, {"dev": case.dev})
    marks = np.array([[name in example.label for name in case.task.labels] for example in case.training])
    vectors = TfidfVectorizer(
        tokenizer=str.split, token_pattern=None, sublinear_tf=True, ngram_range=(1, found.settings["longest"])
    )
    model = LogisticRegression(C=found.settings["strength"], solver="liblinear", max_iter=200, random_state=0)
    pipeline = Pipeline([("vectors", vectors), ("model", OneVsRestClassifier(model))])
    pipeline.fit([example.text for example in case.training], marks)
    expected = pipeline.predict([example.text for example in case.dev]).astype(bool)
    answers = [[name in prediction["labels"] for name in case.task.labels] for prediction in found.predictions["dev"]]
    assert (np.array(answers) == expected).all() and expected.any()
    gold = [[name in example.label for name in case.task.labels] for example in case.dev]
    score = case.task.score(case.dev, found.predictions["dev"])["f1_micro"]
    assert score == pytest.approx(f1_score(gold, expected, average="micro"))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.first_form
def test_kinds_that_label_texts_have_the_baseline(name):
    case = make_case(name)
    found = answer_from_words(case.task, case.training, {"dev": case.dev, "other": case.dev[:7]})
    assert (found is not None) == (name in ("classification", "regression", "multi_label"))
    if found:
        assert found.predictions["other"] == found.predictions["dev"][:7]
        assert found == answer_from_words(case.task, case.training, {"dev": case.dev, "other": case.dev[:7]})
        case.task.score(case.dev, found.predictions["dev"])


@pytest.mark.parametrize(
    ("texts", "labels"),
    [
        (["", "a", "", "b"] * 3, ["x", "y"] * 6),
        (["", " ", "\u200b", ""] * 3, ["x", "y"] * 6),  # no word in the table
        (["a", "b"] * 6, ["x"] * 12),
        (["a", "b", "c"], ["x", "y", "z"]),  # too few rows for folds
        ([*"abcdefgh"], ["x"] * 7 + ["y"]),  # a class in one fold only
    ],
)
def test_degenerate_tables_have_answers(texts, labels):
    task = make_task("classification", labels=("x", "y", "z"))
    training = [TextExample(text, None, label) for text, label in zip(texts, labels, strict=True)]
    dev = [TextExample("a", None, "x"), TextExample("", None, "y"), TextExample("unseen", None, "z")]
    predictions = answer_from_words(task, training, {"dev": dev}).predictions["dev"]
    assert len(predictions) == 3
    for prediction in predictions:
        assert sum(prediction["probabilities"].values()) == pytest.approx(1)


def test_labels_that_no_row_or_each_has_are_never_or_always_given():
    task = make_task("multi_label", labels=("all", "none", "some"))
    training = [TextExample(text, None, ("all", "some") if text == "a" else ("all",)) for text in "abcabcab"]
    predictions = answer_from_words(task, training, {"dev": training}).predictions["dev"]
    assert all("all" in one["labels"] and "none" not in one["labels"] for one in predictions)


def test_rows_and_characters_are_bounded(monkeypatch):
    case = make_case("classification", 60)
    long = [replace(example, text=f"{example.text} {'z' * 100}") for example in case.training]
    monkeypatch.setattr(word_baseline, "MOST_CHOOSING_ROWS", 20)
    monkeypatch.setattr(word_baseline, "MOST_CHARACTERS", 4500)
    settings = answer_from_words(case.task, long, {}).settings
    assert settings["choosing_examples"] == 20 and 30 < settings["fitted_examples"] < 45


def make_rows(classes, rows):
    """Return texts whose second word tells their class."""
    examples = [TextExample(f"a w{row % classes} b{row % 7}", None, f"c{row % classes}") for row in range(rows)]
    return make_task("classification").learn(examples), examples


@pytest.mark.parametrize("classes", [2, 3, 20])
def test_few_classes_are_not_limited(classes):
    task, examples = make_rows(classes, 10_000)
    limits = limit_words(examples, classes, MOST_FEATURES, MOST_ITERATIONS, CHOOSING_FITS)
    assert (limits.features, limits.iterations) == (MOST_FEATURES, MOST_ITERATIONS)
    assert min(limits.rows, limits.choosing_rows) >= 10_000


@pytest.mark.parametrize("classes", [150, 1_000, 5_000])
def test_many_classes_are_bounded_in_weights_and_work(classes):
    task, examples = make_rows(classes, 20_000)
    limits = limit_words(examples, classes, MOST_FEATURES, MOST_ITERATIONS, CHOOSING_FITS)
    assert 24 * 8 * limits.features * classes <= 1e9  # bytes of L-BFGS
    assert limits.choosing_rows < 10_000 and limits.choosing_rows * classes <= 2e6
    row_work = 3 * 2 * classes  # three words and two bigrams
    assert limits.rows * limits.iterations * row_work <= MOST_SPARSE_WORK
    assert limits.choosing_rows * MOST_ITERATIONS * CHOOSING_FITS * row_work <= MOST_SPARSE_WORK


def test_a_limited_baseline_says_so_and_is_the_same_again(monkeypatch, caplog, recwarn):
    monkeypatch.setattr(baseline_module, "MOST_SPARSE_WORK", 1e7)
    monkeypatch.setattr(baseline_module, "MOST_WEIGHTS", 30_000)
    task, examples = make_rows(30, 400)
    found, again = (answer_from_words(task, examples, {"dev": examples[:60]}) for _ in range(2))
    assert found == again
    settings = found.settings
    assert settings["fitted_examples"] < 400 and settings["features"] == 1_000 and settings["iterations"] < 200
    assert f"is fitted on {settings['fitted_examples']} of 400 rows, has 1,000 words" in caplog.text
    assert task.score(examples[:60], found.predictions["dev"])["accuracy"] > 0.9
    assert not recwarn.list  # of many classes, and of fits that were stopped


def test_too_many_classes_have_no_baseline(monkeypatch, caplog):
    monkeypatch.setattr(baseline_module, "MOST_WEIGHTS", 30_000)
    task, examples = make_rows(31, 400)
    assert answer_from_words(task, examples, {"dev": examples[:60]}) is None
    assert "The TF-IDF baseline is left out: 31 classes or labels are too many for it." in caplog.text
