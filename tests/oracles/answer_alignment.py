"""Find the right answers that no row shows as they are written."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from keras_bert_flow.tasks.formats.squad import ContextQuestion
from keras_bert_flow.tasks.question_answering import QuestionAnswering
from keras_bert_flow.text.tokenizers.tokenizer import find_pieces
from keras_bert_flow.text.tokenizers.wordpiece import WordPieceTokenizer


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


def _explain(
    task: QuestionAnswering, tokenizer: WordPieceTokenizer, example: ContextQuestion, sequence_length: int
) -> str:
    """Return why a question's right answer is not what is decoded from its labels."""
    _, starts, ends = tokenizer.encode_with_offsets(example.context)
    answer = example.answers[0]
    gold = find_pieces(starts, ends, answer.start, answer.start + len(answer.text))
    if gold is None:
        return "no_piece"
    if gold[1] - gold[0] >= task.max_answer_tokens:
        return "too_long"
    features = task.encode(tokenizer, [example], sequence_length)
    rows = zip(features.labels["start"], features.details, strict=True)
    if not any(start and window.is_best[start - window.first] for start, window in rows):
        return "cut"
    before, behind = starts[gold[0]] - answer.start, ends[gold[1]] - answer.start - len(answer.text)
    if before < 0 or behind > 0:
        return "inside_a_piece"
    return "edge_dropped" if before or behind else "unexplained"
