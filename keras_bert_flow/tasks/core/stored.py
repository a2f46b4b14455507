"""Keep beside a model what its task is, so that it can be asked in the task's own terms."""

import json
from pathlib import Path

from keras_bert_flow.json_documents import read_json
from keras_bert_flow.tasks.core.task import Task
from keras_bert_flow.tasks.registry import make_task, task_fields

TASK_FILE = "task.json"


def write_task(folder: str | Path, task: Task, sequence_length: int) -> None:
    """Write a task, and how long its rows are at most, in tokens."""
    fields = task_fields(task) | {"sequence_length": sequence_length}
    (Path(folder) / TASK_FILE).write_text(json.dumps(fields, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_task(folder: str | Path) -> tuple[Task, int]:
    """Return the task of a model directory, and its sequence length.

    Raises:
        FileNotFoundError: the directory says of no task.
        ValueError: what it says is no task; the message names the file.
    """
    path = Path(folder) / TASK_FILE
    if not path.is_file():
        raise FileNotFoundError(
            f"A model directory must hold {TASK_FILE} to be asked. Received: {folder}, without it. "
            "Take one that `kbf finetune` made."
        )
    try:
        fields = read_json(path)
        sequence_length = fields.pop("sequence_length")
        if type(sequence_length) is not int or sequence_length < 3:
            raise ValueError("`sequence_length` is no number of tokens")
        return make_task(**fields), sequence_length
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: must say what the task is. Received: {error}. Save the model again.") from None
