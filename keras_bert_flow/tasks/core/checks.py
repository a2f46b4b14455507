"""Check the fields of a task."""

from collections.abc import Sequence


def check_main_metric(name: str, metrics: Sequence[str]) -> None:
    """Raise ValueError for a main metric that the task does not compute, or that is not better when higher."""
    if name not in metrics:
        raise ValueError(
            f"`main_metric` must be one by which runs of this task are compared. Received: {name!r}. "
            f"Use one of: {', '.join(metrics)}."
        )


def check_labels(labels: Sequence[str], least: int) -> None:
    """Raise ValueError for repeated labels, or for fewer than `least` of them but not none."""
    if len(set(labels)) < len(labels) or (labels and len(labels) < least):
        raise ValueError(
            f"`labels` must be {least} or more different names. Received: {', '.join(labels)}. "
            "Leave them out to learn them from the training table."
        )


def refuse_labels(labels: Sequence[str], kind: str) -> None:
    """Raise ValueError if a task without labels is given some."""
    if labels:
        raise ValueError(f"A {kind} has no labels. Received: {', '.join(labels)}. Leave `labels` out.")


def require_learnt(labels: Sequence[str]) -> None:
    """Raise ValueError if a task has no labels yet."""
    if not labels:
        raise ValueError(
            "A task must know its labels before it is used. Received: none. "
            "Call `learn` with the training examples, or give `labels`."
        )
