"""Keep the predictions of a run as lines of JSON, and in the format in which others score them where there is one."""

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from keras_bert_flow.tasks.answering.squad import write_answers, write_no_answer_scores
from keras_bert_flow.tasks.core.task import Prediction, Task
from keras_bert_flow.tasks.tagging.conll import write_conll


def write_predictions(
    folder: Path, name: str, task: Task, examples: Sequence[Any], predictions: Sequence[Prediction]
) -> None:
    """Write `<name>.jsonl`, a prediction a line in the order of the examples, and files that others read.

    These are, of questions: `<name>.answers.json`, as the official scripts of SQuAD take it, and where there may be no
    answer `<name>.no_answer.json`, for their `--na-prob-file`; of tags: `<name>.conll`, with the columns word, tag and
    predicted tag, as conlleval takes it, unless a word holds a blank.
    """
    lines = (json.dumps(prediction) + "\n" for prediction in predictions)
    with open(folder / f"{name}.jsonl", "w", encoding="utf-8", newline="\n") as file:
        file.writelines(lines)
    if task.kind in OFFICIAL:
        OFFICIAL[task.kind](folder / name, task, examples, predictions)


def _write_squad(path: Path, task: Task, examples: Sequence[Any], predictions: Sequence[Prediction]) -> None:
    write_answers(f"{path}.answers.json", predictions)
    if task.null_threshold is not None:
        write_no_answer_scores(f"{path}.no_answer.json", predictions)


def _write_columns(path: Path, task: Task, examples: Sequence[Any], predictions: Sequence[Prediction]) -> None:
    with suppress(ValueError):  # a word of a .jsonl may hold a blank, and then no columns can say it
        write_conll(f"{path}.conll", examples, [prediction["tags"] for prediction in predictions])


# kind of task → writes the files of its format, whose names begin with the path
OFFICIAL: dict[str, Callable[[Path, Task, Sequence[Any], Sequence[Prediction]], None]] = {
    "question_answering": _write_squad,
    "token_classification": _write_columns,
}
