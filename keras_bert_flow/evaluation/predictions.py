"""Write the predictions of a run as JSON lines, and in the official format if there is one."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keras_bert_flow.tasks.core.matching import with_inputs
from keras_bert_flow.tasks.core.task import Prediction, Task
from keras_bert_flow.tasks.formats.rows import JSON_LINES


def write_predictions(
    folder: Path, name: str, task: Task, examples: Sequence[Any], predictions: Sequence[Prediction]
) -> None:
    """Write `<name>.jsonl`, one prediction per line with its texts, in the order of the examples, and official files.

    For questions these are `<name>.answers.json`, for the official scripts of SQuAD, and if there may be no answer
    `<name>.no_answer.json`, for their `--na-prob-file`; for tags `<name>.conll`, with the columns word, tag and
    predicted tag, for conlleval, unless a word contains a blank.
    """
    lines = (json.dumps(prediction) + "\n" for prediction in with_inputs(examples, predictions))
    with open(folder / f"{name}{JSON_LINES}", "w", encoding="utf-8", newline="\n") as file:
        file.writelines(lines)
    task.write_beside(folder / name, examples, predictions)
