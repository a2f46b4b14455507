"""SQuAD: read its questions, score answers as its official script does, and write answers."""

import json
import re
import string
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from keras_bert_flow.files.documents import parse_json
from keras_bert_flow.tasks.formats.rows import abridge, read_rows, read_whole
from keras_bert_flow.text.corpus.lines import suggest_conversion


@dataclass(frozen=True)
class Answer:
    """A span of a context: `context[start : start + len(text)] == text`."""

    text: str
    start: int


@dataclass(frozen=True)
class ContextQuestion:
    """A question about a context.

    Attributes:
        id: unique within its file.
        question: as written.
        context: the text that contains the answer, as written.
        answers: gold answers, any of which is correct; empty if there is no answer or it is unknown.
        is_impossible: the context is known not to contain the answer.
        title: title of the article.
        place: file and location in it, for messages.
    """

    id: str
    question: str
    context: str
    answers: tuple[Answer, ...] = ()
    is_impossible: bool = False
    title: str = ""
    place: str = ""

    @property
    def inputs(self) -> dict[str, str]:
        return {"question": self.question, "context": self.context}

    @property
    def gold(self) -> frozenset[str]:
        """The texts of the answers, empty if there is none."""
        return frozenset(answer.text for answer in self.answers)


def read_questions(
    path: str | Path, max_examples: int | None = None, has_labels: bool = True
) -> tuple[ContextQuestion, ...]:
    """Read questions from SQuAD 1.1 or 2.0 (.json), or from JSON lines (.jsonl), optionally gzipped (.gz).

    A line of .jsonl has the fields id, question, context and answers: a list of {"text": ..., "answer_start": ...},
    empty if the context does not contain the answer. In SQuAD's JSON such a question has `"is_impossible": true`.
    Positions are in characters (code points), from 0. Files are UTF-8, with or without a byte order mark.

    Args:
        max_examples: read at most this many; None reads all.
        has_labels: whether the file has gold answers; if False, answers are ignored.
    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is malformed; the message has the location.
    """
    path = str(path)
    if max_examples is not None and max_examples < 1:
        raise ValueError(f"`max_examples` must be at least 1. Received: {max_examples}. Leave it out to read all.")
    endings = path.removesuffix(".gz")
    if not endings.endswith((".json", ".jsonl")):
        raise ValueError(f"Questions must be in a .json or .jsonl file, perhaps .gz. Received: {path}. Rename it.")
    rows = _walk_lines(path, has_labels) if endings.endswith(".jsonl") else _walk_articles(path, has_labels)
    questions: dict[str, ContextQuestion] = {}
    for question in rows:
        if question.id in questions:
            raise ValueError(
                f"{question.place}: each question must have an id of its own. Received: {question.id!r}, which "
                f"{questions[question.id].place} has. Rename one."
            )
        questions[question.id] = question
        if len(questions) == max_examples:
            break
    if not questions:
        raise ValueError(f"A file of questions must hold at least one. Received: {path}, which holds none.")
    return tuple(questions.values())


def gold_answers(questions: Iterable[ContextQuestion]) -> dict[str, list[str]]:
    """Return the gold answer texts by question id, an empty list if the context does not answer the question.

    Raises:
        ValueError: there are no questions, or the answers to one are unknown.
    """
    questions = list(questions)
    if not questions:
        raise ValueError("There must be at least one question. Received: none. Read the questions first.")
    for question in questions:
        if not question.answers and not question.is_impossible:
            raise ValueError(
                f"{question.place or question.id}: the right answers must be known. Received: a question without. "
                "Read a file that has them, as one with labels."
            )
    return {question.id: [answer.text for answer in question.answers] for question in questions}


def write_answers(path: str | Path, predictions: Iterable[Mapping[str, Any]], field: str = "answer") -> None:
    """Write {id: answer}, the file that the official scripts of SQuAD 1.1 and 2.0 score.

    Args:
        field: what to write of each prediction. `null_difference`, which is higher the less likely an answer is, makes
            the file for `--na-prob-file` of evaluate-v2.0.py.
    """
    values = {prediction["id"]: prediction[field] for prediction in predictions}
    Path(path).write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def _walk_lines(path: str, has_labels: bool) -> Iterator[ContextQuestion]:
    columns = ["id", "question", "context", *(["answers"] if has_labels else [])]
    for number, values in read_rows(path, columns, header=True, keeps_blanks=not has_labels):
        place = f"{path}, row {number}"
        fields = dict(zip(columns, values, strict=True))
        fields["is_impossible"] = has_labels and fields["answers"] == []
        yield _make_question(place, fields, _take(place, fields, "context", str), "", has_labels)


def _walk_articles(path: str, has_labels: bool) -> Iterator[ContextQuestion]:
    file = _load(path)
    if not isinstance(file, dict) or not isinstance(file.get("data"), list):
        raise ValueError(
            f"{path}: SQuAD's JSON must be an object whose `data` is a list of articles. Received: {_name(file)}. "
            "Give one question a line in a .jsonl instead."
        )
    for number, article in enumerate(file["data"], 1):
        place = f"{path}, article {number}"
        paragraphs = _take(place, article, "paragraphs", list)
        title = article.get("title", "")
        _refuse_nul(place, "title", str(title))
        place += f" ({abridge([title])})" if isinstance(title, str) and title.strip() else ""
        for paragraph_number, paragraph in enumerate(paragraphs, 1):
            paragraph_place = f"{place}, paragraph {paragraph_number}"
            context = _take(paragraph_place, paragraph, "context", str)
            for question_number, fields in enumerate(_take(paragraph_place, paragraph, "qas", list), 1):
                question_place = f"{paragraph_place}, question {question_number}"
                yield _make_question(question_place, fields, context, str(title), has_labels)


def _load(path: str) -> Any:
    if not Path(path).is_file():
        raise FileNotFoundError(f"Questions must be in a file. Received: {path}, which is not one. Check the path.")
    content = read_whole(path)
    try:
        return parse_json(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}: the file must be UTF-8. Received: byte 0x{error.object[error.start]:02x} at {error.start}. "
            f"{suggest_conversion(content, path)}"
        ) from None
    except ValueError as error:
        raise ValueError(
            f"{path}: the file must be JSON. Received: {error}. Correct it, or fetch it again if it was cut off."
        ) from None


def _make_question(place: str, fields: Any, context: str, title: str, has_labels: bool) -> ContextQuestion:
    question_id = _take(place, fields, "id", str)
    place += f", id {question_id}"
    question = _take(place, fields, "question", str)
    if not has_labels:
        return ContextQuestion(question_id, question, context, (), False, title, place)
    is_impossible = _take(place, fields, "is_impossible", bool) if "is_impossible" in fields else False
    answers = _take(place, fields, "answers", list) if "answers" in fields or not is_impossible else []
    if is_impossible == bool(answers):
        raise ValueError(
            f"{place}: a question must have answers, or `is_impossible` true and none. Received: {len(answers)} "
            f"answers, `is_impossible` {json.dumps(is_impossible)}. Correct one of the two."
        )
    found = tuple(_make_answer(place, answer, context) for answer in answers)
    return ContextQuestion(question_id, question, context, found, is_impossible, title, place)


def _make_answer(place: str, fields: Any, context: str) -> Answer:
    text, start = _take(place, fields, "text", str), _take(place, fields, "answer_start", int)
    if start < 0 or not context.startswith(text, start):
        there = context[start : start + len(text)] if start >= 0 else ""
        occurs = context.find(text)
        remedy = f"It stands at {occurs}" if occurs >= 0 else "It stands nowhere there: copy it from the context"
        raise ValueError(
            f"{place}: an answer must stand in the context at its `answer_start`, counted in characters. Received: "
            f"{abridge([repr(text)])} at {start}, where the context has {abridge([repr(there)])}. {remedy}."
        )
    return Answer(text, start)


def _take(place: str, fields: Any, name: str, kind: type) -> Any:
    """Return a field after checking that it exists and has its type, and that text is valid and not blank."""
    if not isinstance(fields, dict) or name not in fields:
        raise ValueError(f"{place}: the field {name!r} is missing. Received: {_name(fields)}. Add it.")
    value = fields[name]
    text = value if kind is str and isinstance(value, str) else None
    # True is an int in Python, but not a position in a text.
    if type(value) is not kind or (text is not None and not text.strip()):
        names = {str: "text that is not blank", list: "a list", bool: "true or false", int: "a whole number"}
        received = abridge([ascii(value)])
        raise ValueError(f"{place}: the field {name!r} must be {names[kind]}. Received: {received}. Correct it.")
    if text is not None:
        _refuse_nul(place, name, text)
    if text is not None and not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:  # JSON can encode a lone surrogate, UTF-8 cannot
            raise ValueError(
                f"{place}: the field {name!r} must be Unicode. Received: {abridge([ascii(value)])}. Correct it."
            ) from None
    return value


def _refuse_nul(place: str, name: str, text: str) -> None:
    if "\0" in text:
        raise ValueError(
            f"{place}: the field {name!r} must not hold NUL. Received: one at character {text.index(chr(0)) + 1}. "
            "Remove it, and correct the places of answers behind it."
        )


def _name(value: Any) -> str:
    return f"an object with {abridge(value) or 'nothing'}" if isinstance(value, dict) else f"a {type(value).__name__}"


# SQuAD 1.1 and 2.0 metrics, exact match and F1, as in the official scripts but from 0 to 1 instead of percent.

ARTICLES = re.compile(r"\b(?:a|an|the)\b")
WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)  # ASCII only

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
    for given, what in ((answers, "an answer"), (no_answer_scores, "a no-answer score")):
        lacking = [] if given is None else [question for question in golds if question not in given]
        if lacking:
            raise ValueError(f"Each question must have {what}. Received: none for {lacking[0]!r}. Predict it too.")
    _count(golds)
    worded = {question: [text for text in texts if normalize_answer(text)] or [""] for question, texts in golds.items()}
    raw = {
        name: {question: max(measure(gold, answers[question]) for gold in texts) for question, texts in worded.items()}
        for name, measure in (("exact", count_exact), ("f1", word_f1))
    }
    scores = raw
    if no_answer_scores is not None:
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


def _count(golds: Golds) -> int:
    if not golds:
        raise ValueError("Scoring needs at least one question. Received: none. Read the questions first.")
    return len(golds)
