"""Answers are scored with and without questions that have none, and so are guesses by the commonest place."""

import json

import pytest

from keras_bert_flow.tasks.question_answering import QuestionAnswering
from tests.tasks.questions import ask


def make_predictions(*entries):
    """Make predictions for questions 0, 1, ...: what is answered, the best span, and by how much [CLS] is higher."""
    return [
        {"id": str(n), "answer": answer, "n_best": [{"answer": ""}, {"answer": best}], "null_difference": difference}
        for n, (answer, best, difference) in enumerate(entries)
    ]


QUESTIONS = [
    ask("ran home", "home", name="0"),
    ask("ran home", is_impossible=True, name="1"),
    ask("a b c", "a b c", "b", name="2"),
    ask("ran home", is_impossible=True, name="3"),
]


def test_score_counts_both_kinds_of_questions():
    predictions = make_predictions(("", "home", 1.0), ("", "ran", 3.0), ("b c d", "b c d", -2.0), ("ran", "ran", 0.5))
    scores = QuestionAnswering(null_threshold=0.75).score(QUESTIONS, predictions)
    # Of "b c d" F1 is 2/4 by "b", and 4/5 by "a b c", where "a" is an article.
    has_answer = {"has_answer_exact": 0.0, "has_answer_f1": 0.4, "no_answer_exact": 0.5, "no_answer_f1": 0.5}
    best = {"best_exact": 0.5, "best_exact_threshold": 0.0, "best_f1": 0.7, "best_f1_threshold": -2.0}
    assert scores == pytest.approx({"exact": 0.25, "f1": 0.45, **has_answer, **best})


def test_score_without_unanswerable_questions_is_that_of_squad_1():
    predictions = make_predictions(("home!", "home!", 5.0), ("", "", 0.0), ("the c", "the c", 5.0))
    examples = [QUESTIONS[0], QUESTIONS[2]]
    scores = QuestionAnswering().score(examples, [predictions[0], predictions[2]])
    assert scores == pytest.approx({"exact": 0.5, "f1": (1 + 2 / 3) / 2})
    with_threshold = QuestionAnswering(null_threshold=0.0).score(examples, [predictions[0], predictions[2]])
    assert with_threshold["f1"] == scores["f1"] and "no_answer_f1" not in with_threshold


def test_score_needs_labels():
    with pytest.raises(ValueError, match="q: the right answers must be known"):
        QuestionAnswering().score([ask("a")], make_predictions(("a", "a", 0.0)))


def test_guess_answers_with_the_commonest_place():
    training = [ask("c, ran home a", "ran home"), ask("a ran home", "ran home"), ask("a b", "a")]
    examples = [ask("Who  Ran, home!"), ask("home"), ask("a ran", name="z")]
    guesses = QuestionAnswering().guess(training, examples)
    assert [(guess["answer"], guess["start"], guess["end"]) for guess in guesses] == [
        ("Ran, home!", 5, 15),
        ("home", 0, 4),  # too short to have the place: its first words
        ("ran", 2, 5),
    ]
    assert [guess["id"] for guess in guesses] == ["q", "q", "z"]
    assert json.loads(json.dumps(guesses)) == guesses


def test_guess_says_that_there_is_no_answer_where_that_is_commonest():
    training = [ask("a b", is_impossible=True)] * 2 + [ask("a b", "a"), ask("a b", "b")]
    for threshold, answer in [(0.0, ""), (None, "ran")]:
        (guess,) = QuestionAnswering(null_threshold=threshold).guess(training, [ask("ran home")])
        assert guess["answer"] == answer
    assert QuestionAnswering().guess(training[:1], [ask("ran")])[0]["answer"] == ""
    scores = QuestionAnswering(null_threshold=0.0).score(
        QUESTIONS, QuestionAnswering(null_threshold=0.0).guess(training, QUESTIONS)
    )
    assert (scores["has_answer_f1"], scores["no_answer_f1"]) == (0.0, 1.0)


def test_guesses_can_be_scored_where_no_answer_is_a_choice():
    task, examples = QuestionAnswering(null_threshold=0.0), [QUESTIONS[0], QUESTIONS[2]]
    scores = task.score(examples, task.guess([ask("ran home", "ran home")], examples))
    assert scores["f1"] == scores["best_f1"] == pytest.approx((2 / 3 + 1.0) / 2)  # "ran home", and "a b" for "b"


def test_learn_makes_no_answer_a_choice_where_training_has_such_questions():
    assert QuestionAnswering().learn(QUESTIONS[:1]) == QuestionAnswering()
    assert QuestionAnswering().learn(QUESTIONS) == QuestionAnswering(null_threshold=0.0)
    assert QuestionAnswering(null_threshold=2.0).learn(QUESTIONS) == QuestionAnswering(null_threshold=2.0)
    for examples in ([], [ask("a")]):
        with pytest.raises(ValueError, match="Received: "):
            QuestionAnswering().learn(examples)
