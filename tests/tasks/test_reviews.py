"""What every kind of task says of its predictions: tables, errors, collapse, and its score on other draws."""

import json
from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import precision_recall_fscore_support

from keras_bert_flow.tasks.classification import Classification, Regression
from keras_bert_flow.tasks.core.metrics import pool_tables
from keras_bert_flow.tasks.core.texts import TextExample
from keras_bert_flow.tasks.formats.squad import Answer, ContextQuestion
from keras_bert_flow.tasks.formats.tagged_words import TaggedWords
from keras_bert_flow.tasks.multi_label import MultiLabel
from keras_bert_flow.tasks.multiple_choice import ChoiceExample, MultipleChoice
from keras_bert_flow.tasks.question_answering import QuestionAnswering
from keras_bert_flow.tasks.sentence_embedding import SentenceEmbedding
from keras_bert_flow.tasks.token_classification import TokenClassification
from tests.tasks.kinds import CASES, MAIN_METRICS, make_case, pick


@pytest.mark.parametrize(("name", "metric"), MAIN_METRICS)
def test_measure_is_the_main_metric_of_the_examples_that_count(name, metric):
    case = make_case(name, main_metric=metric)
    predictions = case.answer(skill=1.5)
    measure = case.task.make_measure(case.dev, predictions)
    rng, values = np.random.default_rng(2), []
    pairs = rng.integers(len(case.dev), size=(100, 2))  # where a class may be predicted that neither has
    for chosen in [np.arange(len(case.dev)), *rng.integers(len(case.dev), size=(20, 25)), *pairs]:
        values.append(measure(chosen))
        expected = case.task.score(*pick(case, predictions, chosen))[metric]
        assert values[-1] == pytest.approx(expected, abs=1e-12)
    assert np.ptp(values) > 0.1 and 0 < values[0] < 1


def test_measure_of_questions_keeps_to_the_rules_of_the_whole_file():
    """Without a threshold a lone question would be scored as in SQuAD 1.1, where an answer of articles is worth 0."""
    context = "the end"
    article = ContextQuestion("a", "What?", context, (Answer("the", 0),))
    lacking = ContextQuestion("b", "Who?", context, (), True)
    answers = [{"id": name, "answer": "the", "null_difference": 0.0, "n_best": []} for name in "ab"]
    task = QuestionAnswering()
    expected = task.score([article, lacking], answers)["f1"]
    assert expected == 1.0  # "the" is no answer at all once it is normalised
    assert task.make_measure([article, lacking], answers)(np.arange(2)) == expected


@pytest.mark.parametrize("name", ["classification", "multi_label"])
def test_table_of_classes_equals_that_of_scikit_learn(name):
    case = make_case(name)
    predictions = case.answer(skill=1.0)
    labels = case.task.labels

    def mark(names):
        return [label in ([names] if isinstance(names, str) else names) for label in labels]

    gold = np.array([mark(example.label) for example in case.dev])
    answers = np.array([mark(prediction.get("label", prediction.get("labels"))) for prediction in predictions])
    expected = precision_recall_fscore_support(gold, answers, zero_division=0)
    table = case.task.tabulate(case.dev, predictions)
    assert list(table) == list(labels)
    for place, label in enumerate(labels):
        row = [table[label][column] for column in ("precision", "recall", "f1", "gold")]
        assert row == pytest.approx([column[place] for column in expected])
        assert table[label]["predicted"] == answers[:, place].sum()
        assert table[label]["correct"] == (gold & answers)[:, place].sum()
    assert json.loads(json.dumps(table)) == table


def test_a_class_that_never_occurs_has_a_row_of_nothing():
    task = Classification(labels=("a", "b", "c"))
    table = task.tabulate([TextExample("t", label="a")], [{"label": "b"}])
    assert table["c"] == {"precision": 0.0, "recall": 0.0, "f1": 0.0, "gold": 0, "predicted": 0, "correct": 0}


@pytest.mark.parametrize("name", ["regression", "multiple_choice", "sentence_embedding", "question_answering"])
def test_a_task_without_classes_has_no_table(name):
    case = make_case(name)
    assert case.task.tabulate(case.dev, case.answer(skill=1.0)) == {}


def test_pooled_tables_have_the_shares_of_the_sums():
    one = {"a": {"gold": 4, "predicted": 1, "correct": 1}, "b": {"gold": 1, "predicted": 0, "correct": 0}}
    other = {"c": {"gold": 0, "predicted": 3, "correct": 0}, "a": {"gold": 4, "predicted": 7, "correct": 1}}
    pooled = pool_tables([one, other])
    assert list(pooled) == ["a", "b", "c"]
    assert pooled["a"] == {"precision": 0.25, "recall": 0.25, "f1": 0.25, "gold": 8, "predicted": 8, "correct": 2}
    assert pooled["c"] == {"precision": 0.0, "recall": 0.0, "f1": 0.0, "gold": 0, "predicted": 3, "correct": 0}
    assert pool_tables([{}, {}]) == {}


PAIR = TextExample("one", "two", "blue")
WORDS = TaggedWords(("Jan", "in", "Gent"), ("B-PER", "O", "B-LOC"))
QUESTION = ContextQuestion("q", "Who?", "Jan or Piet", (Answer("Jan", 0), Answer("Jan", 0), Answer("Piet", 7)))
REVIEWS = [
    (
        Classification(text_pair="p", labels=("blue", "red")),
        PAIR,
        {"label": "blue", "probability": 0.9},
        {"label": "red", "probability": 0.75},
        {"text": "one", "text_pair": "two", "gold": "blue", "predicted": "red", "probability": 0.75},
    ),
    (
        Regression(),
        TextExample("one", None, 2.5),
        {"score": 2.5},
        {"score": 1.0},
        {"text": "one", "gold": 2.5, "predicted": 1.0, "distance": 1.5},
    ),
    (
        MultiLabel(labels=("x", "y", "z")),
        TextExample("one", None, ("z", "x")),
        {"labels": ["x", "z"], "probabilities": {"x": 0.9, "y": 0.1, "z": 0.8}},
        {"labels": ["x", "y"], "probabilities": {"x": 0.99, "y": 0.6, "z": 0.25}},
        # Sure of x, which is right; y given at 0.6, z left out at 0.75.
        {"text": "one", "gold": ["x", "z"], "predicted": ["x", "y"], "probability": 0.75},
    ),
    (
        MultipleChoice(),
        ChoiceExample("It rains.", "So", ("stay", "go"), 1),
        {"label": 1, "text": "go", "probability": 0.5},
        {"label": 0, "text": "stay", "probability": 0.875},
        {"text": "It rains.", "text_pair": "So", "gold": "go", "predicted": "stay", "probability": 0.875},
    ),
    (
        SentenceEmbedding(objective="cosine"),
        TextExample("one", "two", 0.75),
        {"cosine": 0.75},
        {"cosine": 0.25},
        {"text": "one", "text_pair": "two", "gold": 0.75, "predicted": 0.25, "distance": 0.5},
    ),
    (
        SentenceEmbedding(),
        TextExample("one", "two", True),
        {"cosine": 0.5, "rank": 1, "nearest": "two", "nearest_cosine": 0.5},
        {"cosine": 0.5, "rank": 3, "nearest": "six", "nearest_cosine": 0.75},
        {"text": "one", "gold": "two", "predicted": "six", "distance": 0.25},
    ),
    (
        TokenClassification(scheme="IOB2", labels=("O", "B-LOC", "I-LOC", "B-PER", "I-PER")),
        WORDS,
        {"tags": ["B-PER", "O", "B-LOC"], "probabilities": [0.9, 0.9, 0.9]},
        {"tags": ["O", "O", "B-PER"], "probabilities": [0.5, 0.9, 0.75]},
        {
            "text": "Jan in Gent",
            "gold": ["Jan/B-PER", "Gent/B-LOC"],
            "predicted": ["Jan/O", "Gent/B-PER"],
            "probability": 0.75,
        },
    ),
    (
        QuestionAnswering(),
        QUESTION,
        {"id": "q", "answer": "the Piet!", "probability": 0.5},
        {"id": "q", "answer": "Jan or", "probability": 0.25},
        {
            "text": "Who?",
            "text_pair": "Jan or Piet",
            "gold": ["Jan", "Piet"],
            "predicted": "Jan or",
            "probability": 0.25,
        },
    ),
    (
        QuestionAnswering(null_threshold=0.0),
        ContextQuestion("q", "Who?", "Jan or Piet", (), True),
        {"id": "q", "answer": "", "probability": 0.5, "null_difference": 1.0, "n_best": []},
        {"id": "q", "answer": "Jan", "probability": 0.25, "null_difference": -1.0, "n_best": []},
        {"text": "Who?", "text_pair": "Jan or Piet", "gold": "", "predicted": "Jan", "probability": 0.25},
    ),
]


@pytest.mark.parametrize(("task", "example", "right", "wrong", "expected"), REVIEWS)
def test_review_says_what_is_wrong_and_nothing_of_what_is_right(task, example, right, wrong, expected):
    assert task.review(example, right) is None
    assert task.review(example, wrong) == expected
    assert json.loads(json.dumps(expected)) == expected


@pytest.mark.parametrize("name", [*CASES, "scored_pairs"])
def test_perfect_predictions_have_no_errors_and_noise_has(name):
    case = make_case(name)
    noise = [case.task.review(*pair) for pair in zip(case.dev, case.answer(skill=0.0), strict=True)]
    errors = [error for error in noise if error is not None]
    assert len(errors) > len(case.dev) / 4
    assert json.loads(json.dumps(errors, allow_nan=False)) == errors
    perfect = case.answer(skill=1e12)
    if name == "regression":
        assert max(abs(one.label - answer["score"]) for one, answer in zip(case.dev, perfect, strict=True)) < 1e-9
    elif name == "scored_pairs":
        assert max(abs(one.label - answer["cosine"]) for one, answer in zip(case.dev, perfect, strict=True)) < 1e-7
    else:
        assert [case.task.review(*pair) for pair in zip(case.dev, perfect, strict=True)] == [None] * len(case.dev)


@pytest.mark.parametrize("name", [*CASES, "maybe_no_answer", "scored_pairs"])
def test_collapse_is_one_answer_to_examples_that_differ(name):
    case = make_case(name)
    noise = case.answer(skill=0.0)
    assert not case.task.is_collapsed(case.dev, noise)
    names = ("label", "labels", "score", "answer", "cosine", "nearest")
    said = {field: noise[0][field] for field in names if field in noise[0]}
    constant = [prediction | said for prediction in noise]
    if name == "token_classification":
        constant = [prediction | {"tags": ["O"] * len(prediction["tags"])} for prediction in noise]
    assert case.task.is_collapsed(case.dev, constant)


@pytest.mark.parametrize("name", [*CASES, "maybe_no_answer", "scored_pairs"])
def test_one_answer_to_examples_that_are_the_same_is_no_collapse(name):
    case = make_case(name)
    same, answers = pick(case, case.answer(skill=0.0), np.zeros(3, dtype=int))
    if name == "token_classification":
        same = [replace(example, tags=("O",) * len(example.words)) for example in same]
        answers = [answer | {"tags": ["O"] * len(answer["tags"])} for answer in answers]
    assert not case.task.is_collapsed(same, answers)


def test_numbers_have_collapsed_where_they_hardly_differ():
    examples = [TextExample("t", None, score) for score in (0.0, 2.0, 5.0)]
    near, apart = ([{"score": 2.0 + step * place} for place in range(3)] for step in (0.02, 0.03))
    assert Regression().is_collapsed(examples, near) and not Regression().is_collapsed(examples, apart)
