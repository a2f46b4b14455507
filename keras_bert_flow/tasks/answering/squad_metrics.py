"""SQuAD 1.1 and 2.0 metrics, exact match and F1, as in the official scripts but from 0 to 1 instead of percent."""

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

ARTICLES = re.compile(r"\b(?:a|an|the)\b")
WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)  # ASCII only

Measure = Callable[[str, str], float]  # gold answer, answer → score from 0 to 1
Golds = Mapping[str, Sequence[str]]  # question id → gold answers; empty if it has no answer


@lru_cache(maxsize=2**16)
def normalize_answer(text: str) -> str:
    """Lower-case, remove ASCII punctuation and then articles, and collapse whitespace."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(WITHOUT_PUNCTUATION)).split())


def count_exact(gold: str, answer: str) -> float:
    """Return 1.0 if two answers are equal after normalisation, else 0.0."""
    return float(normalize_answer(gold) == normalize_answer(answer))


def word_f1(gold: str, answer: str, empty_agrees: bool = True) -> float:
    """Return the F1 of the words that two answers share, counting repeated words.

    Args:
        empty_agrees: two answers without words score 1.0, as in evaluate-v2.0.py; otherwise 0.0, as in
            evaluate-v1.1.py.
    """
    gold_words, words = normalize_answer(gold).split(), normalize_answer(answer).split()
    if not gold_words or not words:
        return float(empty_agrees and gold_words == words)
    common = (Counter(gold_words) & Counter(words)).total()
    return 2 * common / (len(gold_words) + len(words))


def score_squad_1(golds: Golds, answers: Mapping[str, str]) -> dict[str, float]:
    """Compute exact match and F1 as evaluate-v1.1.py does: the maximum over gold answers, 0 without a prediction.

    Returns:
        exact and f1, means over all questions of `golds`.
    Raises:
        ValueError: there are no questions, or one has no gold answer.
    Source: Rajpurkar et al. 2016, arXiv:1606.05250, section 6.1, and its evaluate-v1.1.py.
    """
    for question, texts in golds.items():
        if not texts:
            raise ValueError(
                f"SQuAD 1.1 knows no question without an answer. Received: {question!r}. Score it as SQuAD 2.0."
            )
    answered = [question for question in golds if question in answers]
    exact = [max(count_exact(gold, answers[question]) for gold in golds[question]) for question in answered]
    f1 = [max(word_f1(gold, answers[question], False) for gold in golds[question]) for question in answered]
    return {"exact": sum(exact) / _count(golds), "f1": sum(f1) / _count(golds)}


def score_squad_2(
    golds: Golds,
    answers: Mapping[str, str],
    no_answer_scores: Mapping[str, float] | None = None,
    threshold: float = 1.0,
) -> dict[str, float]:
    """Compute exact match and F1 as evaluate-v2.0.py does: "" is the correct answer where there is none.

    Args:
        golds: gold answers by question id. Those without words, such as "the", are ignored; if none is left, "" is
            correct.
        answers: the predicted answer to each question; "" means no answer.
        no_answer_scores: higher the less likely an answer is; as `--na-prob-file`.
        threshold: questions with a higher score count as answered by ""; as `--na-prob-thresh`.
    Returns:
        exact and f1; the same over questions with an answer (has_answer_) and without (no_answer_), where there are
        such; with `no_answer_scores` also best_exact and best_f1, the values at the best threshold for each, and those
        thresholds.
    Raises:
        ValueError: there are no questions, or one lacks its answer or score, for which the official script raises
            KeyError.
    Source: Rajpurkar et al. 2018, arXiv:1806.03822, and its evaluate-v2.0.py.
    """
    _require_all(golds, answers, "an answer")
    _count(golds)
    raw = {name: score_each(golds, answers, measure) for name, measure in (("exact", count_exact), ("f1", word_f1))}
    scores = raw
    if no_answer_scores is not None:
        _require_all(golds, no_answer_scores, "a no-answer score")
        refused = {question for question in golds if no_answer_scores[question] > threshold}
        scores = {
            name: {
                question: float(not golds[question]) if question in refused else score[question] for question in golds
            }
            for name, score in raw.items()
        }
    result = _average_parts(golds, scores)
    if no_answer_scores is not None:
        for name, score in raw.items():
            best, best_threshold = _find_best_threshold(golds, answers, score, no_answer_scores)
            result |= {f"best_{name}": best, f"best_{name}_threshold": best_threshold}
    return result


def score_each(golds: Golds, answers: Mapping[str, str], measure: Measure) -> dict[str, float]:
    """Return the SQuAD 2.0 score of each answer, the maximum over gold answers; "" is correct where there is none."""
    return {
        question: max(measure(gold, answers[question]) for gold in list(filter(normalize_answer, texts)) or [""])
        for question, texts in golds.items()
    }


def _average_parts(golds: Golds, scores: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each score over all questions, over those with an answer and over those without."""
    parts = {"": list(golds), "has_answer_": [question for question in golds if golds[question]]}
    parts["no_answer_"] = [question for question in golds if not golds[question]]
    return {
        part + name: sum(score[question] for question in questions) / len(questions)
        for part, questions in parts.items()
        if questions
        for name, score in scores.items()
    }


def _find_best_threshold(
    golds: Golds, answers: Mapping[str, str], scores: Mapping[str, float], no_answer_scores: Mapping[str, float]
) -> tuple[float, float]:
    """Start with every question unanswered, and answer one after the other, most likely to have an answer first."""
    total = best = float(sum(not texts for texts in golds.values()))
    threshold = 0.0  # also if answering nothing is best, as in the official script
    for question in sorted((name for name in no_answer_scores if name in golds), key=no_answer_scores.__getitem__):
        total += scores[question] if golds[question] else -float(bool(answers[question]))
        if total > best:
            best, threshold = total, float(no_answer_scores[question])
    return best / len(golds), threshold


def _require_all(golds: Golds, given: Mapping[str, object], what: str) -> None:
    for question in golds:
        if question not in given:
            raise ValueError(f"Each question must have {what}. Received: none for {question!r}. Predict it too.")


def _count(golds: Golds) -> int:
    if not golds:
        raise ValueError("Scoring needs at least one question. Received: none. Read the questions first.")
    return len(golds)
