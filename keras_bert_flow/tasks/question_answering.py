"""Answer a question by a span of its context, or say that the context does not answer it."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np

from keras_bert_flow.tasks.features import Features
from keras_bert_flow.tasks.squad import ContextQuestion, gold_answers, read_questions
from keras_bert_flow.tasks.squad_metrics import (
    count_exact,
    find_threshold,
    score_each,
    score_squad_1,
    score_squad_2,
    word_f1,
)
from keras_bert_flow.tasks.task import Prediction, Task
from keras_bert_flow.tasks.texts import take_texts
from keras_bert_flow.text.offsets import encode_with_offsets, find_pieces
from keras_bert_flow.text.tokenizer import WordPieceTokenizer


@dataclass(frozen=True)
class Window:
    """What a row shows of its context.

    Attributes:
        first: place of its first piece in the row.
        starts: int32, (pieces,). Where each of its pieces begins in the context as written, in characters.
        ends: the same of where they end.
        is_best: bool, (pieces,). No other window shows more on both sides of the piece: answers begin only there.
    """

    first: int
    starts: np.ndarray
    ends: np.ndarray
    is_best: np.ndarray


@final
@dataclass(frozen=True)
class QuestionAnswering(Task):
    """Find the span of a context that answers a question: SQuAD 1.1, and 2.0 where the answer may be missing.

    A model reads [CLS] question [SEP] window [SEP] and gives each token a `start` and an `end` logit. A context that is
    too long for one row is read in windows that overlap. Where a window lacks the answer both labels are 0, [CLS].

    Attributes:
        stride: pieces from the start of one window to the start of the next.
        max_question_tokens: pieces of a question; a longer one loses its end.
        max_answer_tokens: pieces of an answer at most.
        n_best: answers that a prediction lists, at most; one more where no answer is a choice.
        null_threshold: None where every question has an answer. Else the answer is "" where [CLS] scores higher than
            the best span by more than this.
        main_metric: "f1" or "exact".
        labels: none; the choice is between places of a text.
    Source: Devlin et al. 2019, sections 4.2 and 4.3; google-research/bert, run_squad.py, whose values these are.
    """

    kind: ClassVar[str] = "question_answering"
    stride: int = 128
    max_question_tokens: int = 64
    max_answer_tokens: int = 30
    n_best: int = 20
    null_threshold: float | None = None
    main_metric: str = "f1"
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

    def pose(self, item: Any) -> ContextQuestion:
        question, context = take_texts(item, ("question", "context"))
        return ContextQuestion("", question, context)

    def learn(self, examples: Sequence[ContextQuestion]) -> "QuestionAnswering":
        """Return this task, with `null_threshold` 0.0 where it was None and some of the questions have no answer."""
        gold_answers(examples)  # raises where there are none
        if self.null_threshold is None and any(example.is_impossible for example in examples):
            return replace(self, null_threshold=0.0)
        return self

    def encode(
        self, tokenizer: WordPieceTokenizer, examples: Sequence[ContextQuestion], sequence_length: int
    ) -> Features:
        """Turn questions into rows, one for each window of the context; the first right answer is the label."""
        contexts: dict[str, tuple[np.ndarray, ...]] = {}  # one context has several questions
        rows, owners, labels, windows = [], [], [], []
        for number, example in enumerate(examples):
            if example.context not in contexts:
                contexts[example.context] = encode_with_offsets(tokenizer, example.context)
            ids, starts, ends = contexts[example.context]
            question = tokenizer.encode(example.question)[: self.max_question_tokens]
            head = np.concatenate([[tokenizer.cls_id], question, [tokenizer.sep_id]])
            gold = _find_gold(example, starts, ends)
            room = sequence_length - len(head) - 1
            _require_room(example, room, sequence_length)
            for begin, end, is_best in _cut_windows(len(ids), room, self.stride):
                has_gold = gold is not None and begin <= gold[0] and gold[1] < end
                labels.append([place - begin + len(head) for place in gold] if has_gold else [0, 0])
                rows.append(np.concatenate([head, ids[begin:end], [tokenizer.sep_id]]).astype(np.int32))
                windows.append(Window(len(head), starts[begin:end], ends[begin:end], is_best))
                owners.append(number)
        first_lengths = np.array([window.first for window in windows], dtype=np.int32)
        label_columns = np.array(labels, dtype=np.int32).reshape(-1, 2).T
        known = all(example.answers or example.is_impossible for example in examples)
        named = dict(zip(("start", "end"), label_columns, strict=True)) if known else {}
        return Features(rows, first_lengths, np.array(owners, dtype=np.int32), named, details=windows)

    def decode(
        self, outputs: Mapping[str, Sequence[Any]], features: Features, examples: Sequence[ContextQuestion]
    ) -> list[Prediction]:
        """Choose the spans whose start and end logit have the highest sum.

        A span lies in one window, begins where `Window.is_best`, and has at most `max_answer_tokens` pieces. All such
        spans are looked at; run_squad.py pairs only the `n_best` highest starts with the `n_best` highest ends.

        Returns:
            For each question: id; answer, as it stands in the context, and its start and end in it, in characters, None
            where the answer is ""; probability, by softmax over `n_best`; null_difference, by how much [CLS] (the
            lowest of all windows) scores higher than the best span; n_best, a list of answer, start, end, score and
            probability, the best first.
        """
        spans: list[list[np.ndarray]] = [[] for _ in examples]
        null_scores = np.full(len(examples), np.inf)
        logits = [_check_logits(outputs, name, features) for name in ("start", "end")]
        for row_starts, row_ends, owner, window in zip(*logits, features.examples, features.details, strict=True):
            spans[owner].append(self._find_spans(row_starts, row_ends, window))
            null_scores[owner] = min(null_scores[owner], float(row_starts[0]) + float(row_ends[0]))
        return [
            self._choose(example, np.concatenate(found), float(null_score))
            for example, found, null_score in zip(examples, spans, null_scores, strict=True)
        ]

    def score(self, examples: Sequence[ContextQuestion], predictions: Sequence[Prediction]) -> dict[str, float]:
        """Measure predictions as the official scripts do, in shares from 0 to 1, not percents.

        Returns:
            exact and f1; where questions may have no answer, what `score_squad_2` gives: also best_exact and best_f1,
            of the best spans under the best threshold for these examples.
        """
        golds = gold_answers(examples)
        answers = {prediction["id"]: prediction["answer"] for prediction in predictions}
        if self.null_threshold is None and all(golds.values()):
            return score_squad_1(golds, answers)
        differences = {prediction["id"]: prediction["null_difference"] for prediction in predictions}
        best = score_squad_2(golds, _best_answers(predictions), differences)
        return score_squad_2(golds, answers) | {name: best[name] for name in best if name.startswith("best_")}

    def guess(self, training: Sequence[ContextQuestion], examples: Sequence[ContextQuestion]) -> list[Prediction]:
        """Predict for each question the words at the commonest place of answers, or none if that is commoner."""
        places = Counter(_place_in_words(example) for example in training)
        if self.null_threshold is None:
            places.pop(None, None)
        place = places.most_common(1)[0][0] if places else None
        predictions = []
        for example in examples:
            words = [match.span() for match in re.finditer(r"\S+", example.context)]
            span = words[place[0] : place[0] + place[1]] or words[: place[1]] if place else []
            start, end = (span[0][0], span[-1][1]) if span else (None, None)
            answer = example.context[start:end] if span else ""
            chosen = {"id": example.id, "answer": answer, "start": start, "end": end, "probability": 1.0}
            predictions.append(chosen | {"null_difference": 0.0, "n_best": []})
        return predictions

    def _find_spans(self, start_logits: np.ndarray, end_logits: np.ndarray, window: Window) -> np.ndarray:
        """Return the best spans of a window, float64, (spans, 3): score, start and end in characters."""
        count, longest = len(window.starts), self.max_answer_tokens
        context = slice(window.first, window.first + count)
        begins = np.where(window.is_best, start_logits[context], -np.inf)
        stops = np.full(count + longest, -np.inf)  # with one more, a context without pieces is no special case
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
        # Without a span, as in a context of controls, it is as if one scored 0: so does run_squad.py.
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


def tune_null_threshold(
    task: QuestionAnswering, examples: Sequence[ContextQuestion], predictions: Sequence[Prediction]
) -> QuestionAnswering:
    """Return the task with the threshold that gives these predictions the highest `main_metric`."""
    golds = gold_answers(examples)
    measure = {"f1": word_f1, "exact": count_exact}[task.main_metric]
    answered = score_each(golds, _best_answers(predictions), measure)
    refused = score_each(golds, dict.fromkeys(golds, ""), measure)
    gains = [answered[prediction["id"]] - refused[prediction["id"]] for prediction in predictions]
    differences = [prediction["null_difference"] for prediction in predictions]
    return replace(task, null_threshold=find_threshold(np.array(gains), np.array(differences)))


def check_alignment(
    task: QuestionAnswering, tokenizer: WordPieceTokenizer, examples: Sequence[ContextQuestion], sequence_length: int
) -> dict[str, list[tuple[str, str, str]]]:
    """Find which right answers a perfect model could not give, and why.

    Each right answer of each question is encoded as a label, answered by logits of 1 at the label, and decoded.

    Returns:
        Reason → (id, right answer, decoded answer) of each. The reasons: exact, none is needed; no_piece, normalisation
        drops all of it; too_long, it has more than `max_answer_tokens` pieces; cut, the window in which it would begin
        does not hold its end; inside_a_piece, it begins or ends there; edge_dropped, normalisation drops what it begins
        or ends with; unexplained.
    """
    task = replace(task, null_threshold=None)
    reasons = ("exact", "no_piece", "too_long", "cut", "inside_a_piece", "edge_dropped", "unexplained")
    found: dict[str, list[tuple[str, str, str]]] = {reason: [] for reason in reasons}
    cases = [replace(example, answers=(gold,)) for example in examples for gold in dict.fromkeys(example.answers)]
    for begin in range(0, len(cases), 1000):
        batch = cases[begin : begin + 1000]
        features = task.encode(tokenizer, batch, sequence_length)
        outputs = {
            name: [np.eye(1, length, place)[0] for length, place in zip(features.lengths, places, strict=True)]
            for name, places in features.labels.items()
        }
        for example, prediction in zip(batch, task.decode(outputs, features, batch), strict=True):
            gold, answer = example.answers[0].text, prediction["answer"]
            reason = "exact" if gold == answer else _explain(task, tokenizer, example, sequence_length)
            found[reason].append((example.id, gold, answer))
    return found


def _find_gold(example: ContextQuestion, starts: np.ndarray, ends: np.ndarray) -> tuple[int, int] | None:
    """Return the first and last piece of the first right answer."""
    if not example.answers:
        return None
    answer = example.answers[0]
    return find_pieces(starts, ends, answer.start, answer.start + len(answer.text))


def _require_room(example: ContextQuestion, room: int, sequence_length: int) -> None:
    if room < 1:
        raise ValueError(
            f"{example.place or example.id}: a row must have room for the question, three special tokens and a piece "
            f"of the context. Received: sequence_length={sequence_length}, {1 - room} too few. Raise it, or lower "
            "`max_question_tokens`."
        )


def _cut_windows(count: int, room: int, stride: int) -> list[tuple[int, int, np.ndarray]]:
    """Return begin, end and `is_best` of each window of `count` pieces."""
    begins = [0]
    while begins[-1] + room < count:
        begins.append(begins[-1] + min(room, stride))
    best = np.full(count, -np.inf)
    owners = np.zeros(count, dtype=np.int64)
    windows = [(begin, min(begin + room, count)) for begin in begins]
    for number, (begin, end) in enumerate(windows):
        # Pieces on the shorter side, and a little for the window's length: run_squad.py, `_check_is_max_context`.
        place = np.arange(end - begin)
        context = np.minimum(place, place[::-1]) + 0.01 * (end - begin)
        owners[begin:end][context > best[begin:end]] = number
        best[begin:end] = np.maximum(best[begin:end], context)
    return [(begin, end, owners[begin:end] == number) for number, (begin, end) in enumerate(windows)]


def _check_logits(outputs: Mapping[str, Sequence[Any]], name: str, features: Features) -> list[np.ndarray]:
    logits = [np.asarray(row, dtype=np.float64) for row in outputs[name]]
    shapes, expected = [row.shape for row in logits], [(len(row),) for row in features.token_ids]
    if shapes != expected:
        raise ValueError(
            f"The output {name!r} must have one logit for each token of each row, without padding. Received: "
            f"{len(shapes)} rows for {len(expected)}, or rows of other lengths. Cut each row to its length."
        )
    for number, row in enumerate(logits):
        if not np.isfinite(row).all():
            raise ValueError(
                f"The output {name!r} must be finite numbers. Received: nan or inf in row {number}. "
                "The training has diverged: lower its learning rate."
            )
    return logits


def _best_answers(predictions: Sequence[Prediction]) -> dict[str, str]:
    """Return the best span of each question, also where the answer is that there is none."""
    return {
        prediction["id"]: next((entry["answer"] for entry in prediction["n_best"] if entry["answer"]), "")
        or prediction["answer"]
        for prediction in predictions
    }


def _place_in_words(example: ContextQuestion) -> tuple[int, int] | None:
    """Return at which word of the context, counted at spaces, its answer begins, and how many words it has."""
    if not example.answers:
        return None
    answer = example.answers[0]
    return len((example.context[: answer.start] + "x").split()) - 1, len(answer.text.split())


def _explain(
    task: QuestionAnswering, tokenizer: WordPieceTokenizer, example: ContextQuestion, sequence_length: int
) -> str:
    """Return why a question's right answer is not what is decoded from its labels."""
    _, starts, ends = encode_with_offsets(tokenizer, example.context)
    gold = _find_gold(example, starts, ends)
    if gold is None:
        return "no_piece"
    if gold[1] - gold[0] >= task.max_answer_tokens:
        return "too_long"
    features = task.encode(tokenizer, [example], sequence_length)
    rows = zip(features.labels["start"], features.details, strict=True)
    if not any(start and window.is_best[start - window.first] for start, window in rows):
        return "cut"
    answer = example.answers[0]
    before, behind = starts[gold[0]] - answer.start, ends[gold[1]] - answer.start - len(answer.text)
    if before < 0 or behind > 0:
        return "inside_a_piece"
    return "edge_dropped" if before or behind else "unexplained"
