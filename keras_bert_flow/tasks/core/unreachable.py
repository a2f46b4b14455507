"""Describe the labels of a file that no model can predict, as counted by `Task.count_unreachable`."""

from collections.abc import Iterator, Mapping

Unreachable = Mapping[str, Mapping[str, int]]  # what is counted → `total`, and a count per reason

# What is counted → what is wrong with it.
PROBLEMS = {
    "answers": "cannot be given exactly",
    "questions": "have no answer that can be given exactly",
    "words": "are not shown to the model as written",
    "spans": "are not shown to the model whole",
    "texts": "are the same to the model as another text",
}
# (What is counted, reason) → the reason in words.
REASONS = {
    ("answers", "no_piece"): "dropped by the tokenizer",
    ("answers", "too_long"): "longer than max_answer_tokens",
    ("answers", "cut"): "cut by a window",
    ("answers", "inside_a_piece"): "beginning or ending inside a piece",
    ("answers", "edge_dropped"): "beginning or ending with a character that the tokenizer drops",
    ("questions", "no_answer"): "with those answers only",
    ("words", "no_piece"): "dropped by the tokenizer",
    ("words", "unknown"): "with [UNK]",
    ("words", "cut"): "longer than sequence_length",
    ("spans", "cut"): "cut by every window",
    ("texts", "cut"): "differing beyond sequence_length only",
    ("texts", "folded"): "with the same tokens, such as [UNK]",
}


def list_unreachable(found: Unreachable) -> Iterator[tuple[str, int, dict[str, int]]]:
    """Yield what is counted and its problem in words, the total, and the count by reason in words."""
    for noun, counts in found.items():
        reasons = {REASONS[noun, reason]: count for reason, count in counts.items() if reason != "total"}
        yield f"{noun} {PROBLEMS[noun]}", counts["total"], reasons


def describe_unreachable(name: str, found: Unreachable) -> str:
    """Return one line about a file, or "" if a perfect model could predict all of its labels."""
    parts = []
    for problem, total, reasons in list_unreachable(found):
        count = sum(reasons.values())
        listed = ", ".join(f"{number:,} {reason}" for reason, number in reasons.items())
        parts.append(f"{count:,} of {total:,} {problem} ({count / total:.2%}): {listed}")
    return f"{name}: {'; '.join(parts)}." if parts else ""
