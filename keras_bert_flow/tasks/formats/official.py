"""Write predictions in official formats: GLUE tables, SQuAD JSON, CoNLL columns."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keras_bert_flow.local_paths import check_local
from keras_bert_flow.tasks.core.task import Prediction, Task


def check_format(name: str, task: Task) -> None:
    """Raise ValueError unless predictions of a task have a format of this name."""
    if name != task.official_format:
        known = ["jsonl", *([task.official_format] if task.official_format else [])]
        raise ValueError(
            f"A format must be one that predictions of {task.kind} have. Received: {name!r}. "
            f"Use one of: {', '.join(known)}."
        )


def write_official(path: str | Path, task: Task, examples: Sequence[Any], predictions: Sequence[Prediction]) -> None:
    """Write predictions in the official format of a task, atomically.

    Raises:
        ValueError: the format cannot express a prediction; the message names it.
    """
    path = check_local(path)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        task.write_official(unfinished, examples, predictions)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
