"""Find the gold answers that a question-answering model cannot predict, and why."""

from collections.abc import Sequence

import numpy as np

from keras_bert_flow.tasks.answering.context_windows import Window
from keras_bert_flow.tasks.answering.squad import Answer, ContextQuestion
from keras_bert_flow.tasks.core.features import Features
from keras_bert_flow.text.tokenizers.offsets import find_pieces

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
            if not any(_gives(window, answer, max_answer_tokens) for window in shown):
                found[_explain(shown, answer, max_answer_tokens)].append((example.id, answer.text))
    return found


def count_unreachable_answers(
    examples: Sequence[ContextQuestion], features: Features, max_answer_tokens: int
) -> dict[str, dict[str, int]]:
    """Count the answers that `explain_answers` finds, and the questions of which no gold answer can be predicted."""
    found = explain_answers(examples, features, max_answer_tokens)
    counts = {reason: len(answers) for reason, answers in found.items() if answers}
    if not counts:
        return {}
    total = sum(len(set(example.answers)) for example in examples)
    lost = {pair for answers in found.values() for pair in answers}
    answered = [example for example in examples if example.answers]
    without = sum(all((example.id, answer.text) in lost for answer in example.answers) for example in answered)
    questions = {"questions": {"total": len(answered), "no_answer": without}} if without else {}
    return {"answers": {"total": total} | counts} | questions


def _gives(window: Window, answer: Answer, max_answer_tokens: int) -> bool:
    """Return whether the answer is among the spans of a window that `QuestionAnswering.decode` considers."""
    end = answer.start + len(answer.text)
    pieces = find_pieces(window.starts, window.ends, answer.start, end)
    if pieces is None:
        return False
    first, last = pieces
    is_exact = window.starts[first] == answer.start and window.ends[last] == end
    return bool(is_exact and window.is_best[first] and last - first < max_answer_tokens)


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
    if not any(_holds(window, starts[pieces[0]], ends[pieces[1]]) for window in windows):
        return "cut"
    return "inside_a_piece" if before < 0 or behind > 0 else "edge_dropped"


def _holds(window: Window, start: int, end: int) -> bool:
    """Return whether a span may begin in a window and also ends there."""
    pieces = find_pieces(window.starts, window.ends, start, end)
    if pieces is None:
        return False
    first, last = pieces
    return bool(window.is_best[first] and window.starts[first] == start and window.ends[last] == end)
