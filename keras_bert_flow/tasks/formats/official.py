"""Write predictions in the formats in which others take them: GLUE's table, SQuAD's JSON, CoNLL's columns."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keras_bert_flow.local_paths import check_local
from keras_bert_flow.tasks.answering.squad import write_answers
from keras_bert_flow.tasks.core.task import Prediction, Task
from keras_bert_flow.tasks.formats.glue import write_glue_table
from keras_bert_flow.tasks.tagging.conll import write_conll


@dataclass(frozen=True)
class OfficialFormat:
    """A format: the kinds of task that it is for, and what writes a file of examples and their predictions."""

    kinds: tuple[str, ...]
    write: Callable[[Path, Sequence[Any], Sequence[Prediction]], None]


FORMATS = {
    "glue": OfficialFormat(
        ("classification", "regression"), lambda path, _, predictions: write_glue_table(path, predictions)
    ),
    "squad": OfficialFormat(("question_answering",), lambda path, _, predictions: write_answers(path, predictions)),
    "conll": OfficialFormat(
        ("token_classification",),
        lambda path, examples, predictions: write_conll(path, examples, [found["tags"] for found in predictions]),
    ),
}


def find_format(name: str, task: Task) -> OfficialFormat:
    """Return the format of a name.

    Raises:
        ValueError: there is none, or it is for other kinds of task.
    """
    known = [each for each, official in FORMATS.items() if task.kind in official.kinds]
    if name not in known:
        raise ValueError(
            f"A format must be one that predictions of {task.kind} have. Received: {name!r}. "
            f"Use one of: {', '.join(('jsonl', *known))}."
        )
    return FORMATS[name]


def write_official(
    path: str | Path, official: OfficialFormat, examples: Sequence[Any], predictions: Sequence[Prediction]
) -> None:
    """Write a file, which is there when all is written.

    Raises:
        ValueError: a prediction cannot be said in the format; the message names it.
    """
    unfinished = Path(f"{check_local(path)}.unfinished")
    try:
        official.write(unfinished, examples, predictions)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
