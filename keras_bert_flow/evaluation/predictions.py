"""Keep the predictions of a run as lines of JSON, and in the format in which others score them where there is one."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keras_bert_flow.tasks.core.task import Prediction, Task
from keras_bert_flow.tasks.formats.rows import JSON_LINES


def write_predictions(
    folder: Path, name: str, task: Task, examples: Sequence[Any], predictions: Sequence[Prediction]
) -> None:
    """Write `<name>.jsonl`, a prediction a line in the order of the examples, and files that others read.

    These are, of questions: `<name>.answers.json`, as the official scripts of SQuAD take it, and where there may be no
    answer `<name>.no_answer.json`, for their `--na-prob-file`; of tags: `<name>.conll`, with the columns word, tag and
    predicted tag, as conlleval takes it, unless a word holds a blank.
    """
    lines = (json.dumps(prediction) + "\n" for prediction in predictions)
    with open(folder / f"{name}{JSON_LINES}", "w", encoding="utf-8", newline="\n") as file:
        file.writelines(lines)
    task.write_beside(folder / name, examples, predictions)
