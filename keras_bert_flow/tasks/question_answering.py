"""Extractive question answering: windows of a context, and the span that answers, if any."""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np

from keras_bert_flow.files.documents import parse_json
from keras_bert_flow.tasks.core.metrics import mean_measure
from keras_bert_flow.tasks.core.task import Features, Measure, Prediction, Task
from keras_bert_flow.tasks.core.texts import is_blank, take_texts, token_logits_of
from keras_bert_flow.tasks.formats.rows import JSON_LINES, abridge, read_objects, read_whole
from keras_bert_flow.tasks.formats.squad import (
    Answer,
    ContextQuestion,
    gold_answers,
    read_questions,
    score_squad_1,
    score_squad_2,
    write_answers,
)
from keras_bert_flow.tasks.settings import QuestionAnsweringSettings
from keras_bert_flow.text.tokenizers.tokenizer import Tokenizer, find_pieces

# Split a context that is too long for one row into overlapping windows.


@dataclass(frozen=True)
class Window:
    """The part of a context that one row contains.

    Attributes:
        first: position of its first piece in the row.
        starts: int32, (pieces,). Start of each piece in the context as written, in characters.
        ends: int32, (pieces,). End of each piece, likewise.
        is_best: bool, (pieces,). Whether this window has the most context around the piece; answers begin only at such
            pieces.
    """

    first: int
    starts: np.ndarray
    ends: np.ndarray
    is_best: np.ndarray


def cut_windows(count: int, room: int, stride: int) -> list[tuple[int, int, np.ndarray]]:
    """Split `count` pieces into overlapping windows; return begin, end and `is_best` of each."""
    begins = [0]
    while begins[-1] + room < count:
        begins.append(begins[-1] + min(room, stride))
    best = np.full(count, -np.inf)
    owners = np.zeros(count, dtype=np.int64)
    windows = [(begin, min(begin + room, count)) for begin in begins]
    for number, (begin, end) in enumerate(windows):
        # Pieces on the shorter side, plus 0.01 of the window's length: run_squad.py, `_check_is_max_context`.
        place = np.arange(end - begin)
        context = np.minimum(place, place[::-1]) + 0.01 * (end - begin)
        owners[begin:end][context > best[begin:end]] = number
        best[begin:end] = np.maximum(best[begin:end], context)
    return [(begin, end, owners[begin:end] == number) for number, (begin, end) in enumerate(windows)]


# Find the gold answers that a question-answering model cannot predict, and why.

# In order of precedence: the first that applies is the reason.
REASONS = ("no_piece", "too_long", "cut", "inside_a_piece", "edge_dropped")


def explain_answers(
    examples: Sequence[ContextQuestion], features: Features, max_answer_tokens: int
) -> dict[str, list[tuple[str, str]]]:
    """Find the gold answers that are not among the spans a model can choose, and why.

    Args:
        features: the examples as encoded by `QuestionAnswering.encode`; nothing is encoded again.
    Returns:
        Reason → (question id, answer) of each, every distinct answer of a question once. The reasons: no_piece, the
        tokenizer drops the whole answer; too_long, it has more than `max_answer_tokens` pieces; cut, the window in
        which it would begin does not contain its end; inside_a_piece, it begins or ends inside a piece; edge_dropped,
        the tokenizer drops its beginning or end.
    """
    windows: list[list[Window]] = [[] for _ in examples]
    for owner, window in zip(features.examples.tolist(), features.details, strict=True):
        windows[owner].append(window)
    found: dict[str, list[tuple[str, str]]] = {reason: [] for reason in REASONS}
    for example, shown in zip(examples, windows, strict=True):
        for answer in dict.fromkeys(example.answers):
            spans = [_find_span(window, answer.start, answer.start + len(answer.text)) for window in shown]
            if not any(span is not None and span[1] - span[0] < max_answer_tokens for span in spans):
                found[_explain(shown, answer, max_answer_tokens)].append((example.id, answer.text))
    return found


def _explain(windows: Sequence[Window], answer: Answer, max_answer_tokens: int) -> str:
    end = answer.start + len(answer.text)
    # Each piece is best in exactly one window; starts and ends are non-decreasing from piece to piece.
    starts, ends = (
        np.sort(np.concatenate([values[window.is_best] for window, values in pairs]))
        for pairs in (
            [(window, window.starts) for window in windows],
            [(window, window.ends) for window in windows],
        )
    )
    pieces = find_pieces(starts, ends, answer.start, end)
    if pieces is None:
        return "no_piece"
    if pieces[1] - pieces[0] >= max_answer_tokens:
        return "too_long"
    before, behind = starts[pieces[0]] - answer.start, ends[pieces[1]] - end
    if all(_find_span(window, starts[pieces[0]], ends[pieces[1]]) is None for window in windows):
        return "cut"
    return "inside_a_piece" if before < 0 or behind > 0 else "edge_dropped"


def _find_span(window: Window, start: int, end: int) -> tuple[int, int] | None:
    """Return the first and last piece of a span of `QuestionAnswering.decode` of any length; None if it is not one.

    It is one if it begins and ends with pieces of the window, and the window is the best one for the first.
    """
    pieces = find_pieces(window.starts, window.ends, start, end)
    if pieces is None:
        return None
    first, last = pieces
    is_exact = window.starts[first] == start and window.ends[last] == end
    return pieces if is_exact and window.is_best[first] else None


@final
@dataclass(frozen=True)
class QuestionAnswering(QuestionAnsweringSettings, Task):
    """Extractive question answering: SQuAD 1.1, or 2.0 where a question may have no answer.

    A model reads [CLS] question [SEP] window [SEP] and outputs a `start` and an `end` logit for each token. A context
    that is too long for one row is split into overlapping windows. If a window does not contain the answer, both labels
    are 0, the position of [CLS].

    Attributes:
        stride: pieces from the start of one window to the start of the next.
        max_question_tokens: most pieces of a question; longer ones are truncated at the end.
        max_answer_tokens: most pieces of an answer.
        n_best: most answers listed in a prediction, plus one for no answer where that is allowed.
        null_threshold: None if every question has an answer. Otherwise the answer is "" if the score of [CLS] exceeds
            that of the best span by more than this.
        main_metric: "f1" or "exact".
        labels: always empty: the outputs are positions in a text.
    Source: Devlin et al. 2019, sections 4.2 and 4.3; google-research/bert, run_squad.py, which has the same defaults.
    """

    baseline: ClassVar[str] = "commonest place of an answer"
    headings: ClassVar[Mapping[str, str]] = {
        "exact": "exact match %",
        "f1": "F1 of words %",
        "has_answer_f1": "F1, answerable %",
        "no_answer_f1": "F1, unanswerable %",
    }
    answer: ClassVar[str] = "answer"
    official_format: ClassVar[str | None] = "squad"
    is_asked_in_files: ClassVar[bool] = True
    architecture: ClassVar[str | None] = "ForQuestionAnswering"

    labels: tuple[str, ...] = ()

    def __post_init__(self):
        for name in ("stride", "max_question_tokens", "max_answer_tokens", "n_best"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}` must be at least 1. Received: {getattr(self, name)}. Leave it out.")
        if self.main_metric not in ("f1", "exact"):
            raise ValueError(f"`main_metric` must be 'f1' or 'exact'. Received: {self.main_metric!r}. Choose one.")

    def read(
        self, path: str | Path, max_examples: int | None = None, has_labels: bool = True
    ) -> Sequence[ContextQuestion]:
        return read_questions(path, max_examples, has_labels)

    def make_example(self, item: Any) -> ContextQuestion:
        question, context = ("", "") if is_blank(item) else take_texts(item, ("question", "context"))
        return ContextQuestion("", question, context)

    def learn(self, examples: Sequence[ContextQuestion]) -> "QuestionAnswering":
        """Return this task, with `null_threshold` set to 0.0 if it was None and some questions have no answer."""
        gold_answers(examples)  # raises if there are none
        if self.null_threshold is None and any(example.is_impossible for example in examples):
            return replace(self, null_threshold=0.0)
        return self

    def encode(self, tokenizer: Tokenizer, examples: Sequence[ContextQuestion], sequence_length: int) -> Features:
        """Encode questions as rows, one per window of the context; the label is the first gold answer."""
        contexts: dict[str, tuple[np.ndarray, ...]] = {}  # several questions share a context
        rows, owners, labels, windows = [], [], [], []
        for number, example in enumerate(examples):
            if example.context not in contexts:
                contexts[example.context] = tokenizer.encode_with_offsets(example.context)
            ids, starts, ends = contexts[example.context]
            question = tokenizer.encode(example.question)[: self.max_question_tokens]
            head = np.concatenate([[tokenizer.cls_id], question, [tokenizer.sep_id] * tokenizer.separators])
            gold = None  # the first and last piece of the first gold answer
            if example.answers:
                answer = example.answers[0]
                gold = find_pieces(starts, ends, answer.start, answer.start + len(answer.text))
            room = sequence_length - len(head) - 1
            if room < 1:
                raise ValueError(
                    f"{example.place or example.id}: a row must have room for the question, three special tokens and a "
                    f"piece of the context. Received: sequence_length={sequence_length}, {1 - room} too few. Raise it, "
                    "or lower `max_question_tokens`."
                )
            for begin, end, is_best in cut_windows(len(ids), room, self.stride):
                has_gold = gold is not None and begin <= gold[0] and gold[1] < end
                labels.append([place - begin + len(head) for place in gold] if gold and has_gold else [0, 0])
                rows.append(np.concatenate([head, ids[begin:end], [tokenizer.sep_id]]).astype(np.int32))
                windows.append(Window(len(head), starts[begin:end], ends[begin:end], is_best))
                owners.append(number)
        first_lengths = np.array([window.first for window in windows], dtype=np.int32)
        label_columns = np.array(labels, dtype=np.int32).reshape(-1, 2).T
        known = all(example.answers or example.is_impossible for example in examples)
        named = dict(zip(("start", "end"), label_columns, strict=True)) if known else {}
        return Features(
            rows, first_lengths, np.array(owners, np.int32), named, details=windows, sequence_length=sequence_length
        )

    def count_unreachable(
        self, tokenizer: Tokenizer, examples: Sequence[ContextQuestion], features: Features
    ) -> dict[str, dict[str, int]]:
        """Count the answers that `explain_answers` finds, and the questions whose gold answers are all among them."""
        found = explain_answers(examples, features, self.max_answer_tokens)
        counts = {reason: len(answers) for reason, answers in found.items() if answers}
        if not counts:
            return {}
        total = sum(len(set(example.answers)) for example in examples)
        lost = {pair for answers in found.values() for pair in answers}
        answered = [example for example in examples if example.answers]
        without = sum(all((example.id, answer.text) in lost for answer in example.answers) for example in answered)
        questions = {"questions": {"total": len(answered), "no_answer": without}} if without else {}
        return {"answers": {"total": total} | counts} | questions

    def decode(
        self, outputs: Mapping[str, Any], features: Features, examples: Sequence[ContextQuestion]
    ) -> list[Prediction]:
        """Choose the spans with the highest sum of start and end logit.

        A span lies in one window, begins at a piece with `Window.is_best`, and has at most `max_answer_tokens` pieces.
        All such spans are considered; run_squad.py pairs only the `n_best` highest starts with the `n_best` highest
        ends.

        Returns:
            For each question: id; answer, as written in the context, with its start and end there in characters (None
            if the answer is ""); probability, by softmax over `n_best`; null_difference, the score of [CLS] (the lowest
            of all windows) minus that of the best span; n_best, a list of answer, start, end, score and probability,
            best first.
        """
        spans: list[list[np.ndarray]] = [[] for _ in examples]
        null_scores = np.full(len(examples), np.inf)
        logits = [token_logits_of(outputs, name, features) for name in ("start", "end")]
        for row_starts, row_ends, owner, window in zip(*logits, features.examples, features.details, strict=True):
            spans[owner].append(self._find_spans(row_starts, row_ends, window))
            null_scores[owner] = min(null_scores[owner], float(row_starts[0]) + float(row_ends[0]))
        return [
            self._choose(example, np.concatenate(found), float(null_score))
            for example, found, null_score in zip(examples, spans, null_scores, strict=True)
        ]

    def score(self, examples: Sequence[ContextQuestion], predictions: Sequence[Prediction]) -> dict[str, float]:
        """Compute the official SQuAD metrics, from 0 to 1 instead of percent.

        Returns:
            exact and f1; if questions may have no answer, the metrics of `score_squad_2`, including best_exact and
            best_f1: those of the best spans with the best threshold for these examples.
        """
        golds = gold_answers(examples)
        answers = {prediction["id"]: prediction["answer"] for prediction in predictions}
        if self.null_threshold is None and all(golds.values()):
            return score_squad_1(golds, answers)
        differences = {prediction["id"]: prediction["null_difference"] for prediction in predictions}
        spans = {}  # the best span of each question, even where the answer is ""
        for prediction in predictions:
            listed = next((entry["answer"] for entry in prediction["n_best"] if entry["answer"]), "")
            spans[prediction["id"]] = listed or prediction["answer"]
        best = score_squad_2(golds, spans, differences)
        return score_squad_2(golds, answers) | {name: best[name] for name in best if name.startswith("best_")}

    def guess(self, training: Sequence[ContextQuestion], examples: Sequence[ContextQuestion]) -> list[Prediction]:
        """Predict the words at the most common position of answers, or no answer if that is more common."""
        places = Counter[tuple[int, int] | None]()  # the first word of an answer, and its number of words
        for example in training:
            found = None
            if example.answers:
                answer = example.answers[0]
                before = example.context[: answer.start] + "x"
                found = len(before.split()) - 1, len(answer.text.split())
            places[found] += 1
        if self.null_threshold is None:
            places.pop(None, None)
        place = places.most_common(1)[0][0] if places else None
        predictions: list[Prediction] = []
        for example in examples:
            words = [match.span() for match in re.finditer(r"\S+", example.context)]
            span = words[place[0] : place[0] + place[1]] or words[: place[1]] if place else []
            start, end = (span[0][0], span[-1][1]) if span else (None, None)
            text = example.context[start:end] if span else ""
            chosen = {"id": example.id, "answer": text, "start": start, "end": end, "probability": 1.0}
            predictions.append(chosen | {"null_difference": 0.0, "n_best": []})
        return predictions

    def show(self, example: ContextQuestion) -> dict[str, Any]:
        """Return an example for display; no answer is ""."""
        answers = list(dict.fromkeys(answer.text for answer in example.answers))
        return {"text": example.question, "text_pair": example.context, "gold": answers or ""}

    def review(self, example: ContextQuestion, prediction: Prediction) -> dict[str, Any] | None:
        """Return the error of a prediction, None if it is correct; no answer is ""."""
        if self.score([example], [prediction])["exact"] == 1.0:
            return None
        return self.show(example) | {"predicted": prediction["answer"], "probability": prediction["probability"]}

    def make_measure(self, examples: Sequence[ContextQuestion], predictions: Sequence[Prediction]) -> Measure:
        by_rules_2 = replace(self, null_threshold=0.0)  # they apply to all questions if one has no answer
        task = self if all(example.answers for example in examples) else by_rules_2
        pairs = zip(examples, predictions, strict=True)
        return mean_measure([task.score([one], [answer])[self.main_metric] for one, answer in pairs])

    def write_official(
        self, path: Path, examples: Sequence[ContextQuestion], predictions: Sequence[Prediction]
    ) -> None:
        write_answers(path, predictions)

    def write_beside(self, path: Path, examples: Sequence[ContextQuestion], predictions: Sequence[Prediction]) -> None:
        write_answers(f"{path}.answers.json", predictions)
        if self.null_threshold is not None:
            write_answers(f"{path}.no_answer.json", predictions, "null_difference")

    def names_of(self, example: ContextQuestion) -> Sequence[str]:
        return ()

    def describe_guesses(self, given: Collection[str]) -> list[str]:
        if self.null_threshold is None or "null_threshold" in given:
            return []
        return [
            "Some training questions have no answer, so questions are scored as in SQuAD 2.0, with a threshold of "
            f"{self.null_threshold}; `task.null_threshold` sets another."
        ]

    def score_file(self, path: str | Path, examples: Sequence[ContextQuestion]) -> dict[str, float]:
        """Score an answer file as the official scripts of SQuAD do.

        Best thresholds need `null_difference`, which only our own JSON lines have.
        """
        golds = gold_answers(examples)
        if str(path).endswith(JSON_LINES):
            predictions = [fields for _, fields in read_objects(path)]
            _check_ids(path, golds, [str(fields.get("id")) for fields in predictions])
            if all({"id", "answer", "null_difference", "n_best"} <= set(fields) for fields in predictions):
                return self.score(examples, predictions)
            answers: Any = {str(fields.get("id")): fields.get("answer") for fields in predictions}
        else:
            try:
                answers = parse_json(read_whole(str(path)).decode("utf-8-sig"))
            except ValueError as error:
                raise ValueError(f"{path}: must be JSON. Received: {error}. Write it again.") from None
            if not isinstance(answers, dict):
                raise ValueError(f"{path}: must be an object of ids and answers. Received: {type(answers).__name__}.")
            _check_ids(path, golds, list(answers))
        if wrong := [question for question, answer in answers.items() if not isinstance(answer, str)]:
            raise ValueError(
                f"{path}: each answer must be a text. Received: another for {abridge(map(str, wrong))}. "
                "Write each as a string."
            )
        return score_squad_1(golds, answers) if all(golds.values()) else score_squad_2(golds, answers)

    def _find_spans(self, start_logits: np.ndarray, end_logits: np.ndarray, window: Window) -> np.ndarray:
        """Return the best spans of a window, float64, (spans, 3): score, start and end in characters."""
        count, longest = len(window.starts), self.max_answer_tokens
        context = slice(window.first, window.first + count)
        begins = np.where(window.is_best, start_logits[context], -np.inf)
        stops = np.full(count + longest, -np.inf)  # one extra, so that a context without pieces is no special case
        stops[:count] = end_logits[context]
        scores = begins[:, None] + np.lib.stride_tricks.sliding_window_view(stops, longest)[:count]
        scores = scores.reshape(-1)  # (pieces * longest,), by first piece, then by length
        chosen = np.arange(scores.size)
        if scores.size > self.n_best:
            chosen = np.argpartition(scores, -self.n_best)[-self.n_best :]
        chosen = chosen[scores[chosen] > -np.inf]
        firsts, extras = np.divmod(chosen, longest)
        return np.stack([scores[chosen], window.starts[firsts], window.ends[firsts + extras]], axis=1)

    def _choose(self, example: ContextQuestion, spans: np.ndarray, null_score: float) -> Prediction:
        best: dict[str, dict[str, Any]] = {}
        for score, start, end in spans[np.lexsort((spans[:, 2], spans[:, 1], -spans[:, 0]))].tolist():
            text = example.context[int(start) : int(end)]
            best.setdefault(text, {"answer": text, "start": int(start), "end": int(end), "score": score})
            if len(best) == self.n_best:
                break
        listed = list(best.values())
        null = {"answer": "", "start": None, "end": None, "score": null_score}
        # Without any span, as in a context of control characters, its score counts as 0, as in run_squad.py.
        difference = null_score - (listed[0]["score"] if listed else 0.0)
        is_null = not listed or (self.null_threshold is not None and difference > self.null_threshold)
        answer = null if is_null else listed[0]
        if not listed or self.null_threshold is not None:
            listed = sorted([*listed, null], key=lambda entry: -entry["score"])
        odds = np.exp([entry["score"] - listed[0]["score"] for entry in listed])
        for entry, probability in zip(listed, (odds / odds.sum()).tolist(), strict=True):
            entry["probability"] = probability
        shown = {name: answer[name] for name in ("answer", "start", "end", "probability")}
        return {"id": example.id, **shown, "null_difference": difference, "n_best": listed}


def _check_ids(path: str | Path, golds: Collection[str], given: Sequence[str]) -> None:
    """Refuse a file that is not of these questions: the official scripts score a missing answer as 0, with a remark."""
    counts, known = Counter(given), list(golds)
    faults = {
        "none for": [question for question in known if question not in counts],
        "answers to questions that are not in the file:": [question for question in counts if question not in golds],
        "more than one for": [question for question, count in counts.items() if count > 1],
    }
    for fault, questions in faults.items():
        if questions:
            raise ValueError(
                f"{path}: there must be one answer to each of the {len(known):,} questions. Received: {fault} "
                f"{abridge(questions, limit=3)}. Predict the file that they are from, whole."
            )
