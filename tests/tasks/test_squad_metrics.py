import os
import random
from pathlib import Path

import pytest

from keras_bert_flow.tasks.formats.squad import (
    count_exact,
    normalize_answer,
    read_questions,
    score_squad_1,
    score_squad_2,
    word_f1,
)
from tests.oracles.squad_scores import answer_words, f1_of, official_1, official_2

DATA = os.environ.get("KBF_TEST_DATA")
needs_data = pytest.mark.skipif(not DATA, reason="KBF_TEST_DATA is not set")

WORDS = [
    "the",
    "a",
    "An",
    "THE",
    "cat",
    "Cat's",
    "cats",
    "1,000",
    "U.S.",
    "...",
    "-",
    "a.n",
    "thé",
    "d’a",
    "a_n",
    "",
    "ÉTÉ",
]
SPACES = [" ", "  ", "\t", "\xa0", "-", ",", ""]


def random_answer(rng):
    return "".join(rng.choice(WORDS) + rng.choice(SPACES) for _ in range(rng.randrange(0, 6)))


def random_questions(rng, has_unanswerable):
    """Golds of up to 8 questions, often with several, and answers that often agree with one of them."""
    golds, answers = {}, {}
    for number in range(rng.randrange(1, 9)):
        texts = [random_answer(rng) for _ in range(rng.choice([1, 1, 2, 4]))]
        golds[f"q{number}"] = [] if has_unanswerable and rng.random() < 0.4 else texts
        answers[f"q{number}"] = rng.choice([rng.choice(texts), random_answer(rng), ""])
    return golds, answers


def as_percent(scores):
    return {name: value if name.endswith("threshold") else 100 * value for name, value in scores.items()}


@pytest.mark.parametrize(
    ("text", "normalized"),
    [
        ("The  cat, an' a\tdog.", "cat dog"),
        ("theatre AN-a", "theatre ana"),  # punctuation goes first, so what it parted becomes one word
        ("d’a la carte", "d’ la carte"),  # only ASCII punctuation is deleted
        ("a_n the_", ""),
        ("«The» Été", "« » été"),
        ("!?", ""),
    ],
)
def test_normalize_answer(text, normalized):
    assert normalize_answer(text) == normalized
    assert answer_words(text) == normalized.split()


@pytest.mark.parametrize(
    ("gold", "answer", "exact", "f1", "f1_of_1"),
    [
        ("the", "", 1.0, 1.0, 0.0),
        ("", "cat", 0.0, 0.0, 0.0),
        ("a cat sat", "The cat", 0.0, 2 / 3, 2 / 3),
        ("cat cat dog", "cat cat cat", 0.0, 2 / 3, 2 / 3),
        ("The Cat!", "cat", 1.0, 1.0, 1.0),
    ],
)
def test_measures_of_a_pair(gold, answer, exact, f1, f1_of_1):
    assert count_exact(gold, answer) == exact
    assert word_f1(gold, answer) == pytest.approx(f1)
    assert word_f1(gold, answer, empty_agrees=False) == pytest.approx(f1_of_1)


def test_measures_equal_the_official_rules():
    rng = random.Random(1)
    seen = set()
    for _ in range(5000):
        gold, answer = random_answer(rng), random_answer(rng)
        assert count_exact(gold, answer) == (answer_words(gold) == answer_words(answer))
        for both_empty in (0.0, 1.0):
            expected = f1_of(gold, answer, both_empty)
            assert word_f1(gold, answer, bool(both_empty)) == pytest.approx(expected, abs=1e-12)
        seen.add((bool(answer_words(gold)), bool(answer_words(answer)), 0 < expected < 1))
    assert len(seen) == 5  # of 8: without words on a side nothing is in part right


def test_scores_of_squad_1_equal_the_official_rules():
    rng = random.Random(2)
    for _ in range(2000):
        golds, answers = random_questions(rng, has_unanswerable=False)
        answers = {question: answer for question, answer in answers.items() if rng.random() < 0.9}
        answers["of another file"] = "cat"
        assert as_percent(score_squad_1(golds, answers)) == pytest.approx(official_1(golds, answers), abs=1e-9)


@pytest.mark.parametrize("has_scores", [False, True])
def test_scores_of_squad_2_equal_the_official_rules(has_scores):
    rng = random.Random(3)
    names = set()
    for _ in range(2000):
        golds, answers = random_questions(rng, has_unanswerable=True)
        scores = {question: rng.choice([-1.5, 0.0, 0.5, rng.uniform(-3, 3)]) for question in golds}  # some are equal
        given = (dict(rng.sample(list(scores.items()), len(scores))), rng.choice([0.0, 0.5, 1.0])) if has_scores else ()
        found = as_percent(score_squad_2(golds, answers, *given))
        assert found == pytest.approx(official_2(golds, answers, *given), abs=1e-9)
        names |= set(found)
    assert len(names) == (10 if has_scores else 6)


def test_questions_that_nobody_answered_count_in_squad_1_and_stop_squad_2():
    golds = {"x": ["cat"], "y": ["dog"]}
    assert score_squad_1(golds, {"x": "cat"}) == {"exact": 0.5, "f1": 0.5}
    with pytest.raises(ValueError, match="an answer.*Received: none for 'y'"):
        score_squad_2(golds, {"x": "cat"})
    with pytest.raises(ValueError, match="a no-answer score.*Received: none for 'x'"):
        score_squad_2(golds, {"x": "cat", "y": ""}, {"y": 1.0})


def test_scoring_refuses_what_it_cannot_count():
    with pytest.raises(ValueError, match="Received: 'x'. Score it as SQuAD 2.0"):
        score_squad_1({"x": []}, {"x": ""})
    for score in (score_squad_1, score_squad_2):
        with pytest.raises(ValueError, match="Received: none"):
            score({}, {})


@pytest.mark.slow
@needs_data
def test_gold_answers_score_exactly_100_percent():
    questions = read_questions(Path(DATA, "squad/dev-v1.1.json"))
    golds = {question.id: [answer.text for answer in question.answers] for question in questions}
    answers = {question: texts[0] for question, texts in golds.items()}
    assert score_squad_1(golds, answers) == {"exact": 1.0, "f1": 1.0}
    assert set(score_squad_2(golds, answers).values()) == {1.0}
    assert score_squad_2(golds, dict.fromkeys(golds, ""))["f1"] == 0.0
    # Three questions have the gold answer ".", one of them last: without words it has no F1 in 1.1, and is none in 2.0.
    answers = {question: texts[-1] for question, texts in golds.items()}
    assert score_squad_1(golds, answers) == {"exact": 1.0, "f1": 10_569 / 10_570}
    assert set(score_squad_2(golds, answers).values()) == {10_569 / 10_570}
