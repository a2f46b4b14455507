"""Read the task of a model directory from its `task.json`."""

from pathlib import Path

from keras_bert_flow.json_documents import read_json
from keras_bert_flow.tasks.core.task import TASK_FILE, Task
from keras_bert_flow.tasks.registry import make_task


def read_task(folder: str | Path) -> tuple[Task, int]:
    """Return the task of a model directory, and its sequence length.

    Raises:
        FileNotFoundError: the directory has no `task.json`.
        ValueError: the file does not describe a task; the message names it.
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
