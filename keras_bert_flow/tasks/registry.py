"""Registry of tasks: create a task from its kind and fields, or from the `task.json` of a model."""

from dataclasses import fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from keras_bert_flow.by_name import Registry
from keras_bert_flow.files.documents import Read, read_file, read_json
from keras_bert_flow.tasks.core.task import TASK_FILE, Task
from keras_bert_flow.tasks.formats.rows import abridge

# kind → class, so that a task needs only its own module
KINDS: Registry[type[Task]] = Registry(
    "The kind of a task",
    {
        "classification": "keras_bert_flow.tasks.classification:Classification",
        "regression": "keras_bert_flow.tasks.classification:Regression",
        "multi_label": "keras_bert_flow.tasks.multi_label:MultiLabel",
        "multiple_choice": "keras_bert_flow.tasks.multiple_choice:MultipleChoice",
        "question_answering": "keras_bert_flow.tasks.question_answering:QuestionAnswering",
        "sentence_embedding": "keras_bert_flow.tasks.sentence_embedding:SentenceEmbedding",
        "token_classification": "keras_bert_flow.tasks.token_classification:TokenClassification",
    },
)

WORDS = {str: "text", bool: "true or false", int: "an integer", float: "a number", NoneType: "null"}


def make_task(kind: str, **values: Any) -> Task:
    """Make a task; fields that are not given have their defaults.

    Args:
        kind: one of `KINDS`.
        values: fields of its class; lists, as in JSON, become tuples.
    Raises:
        ValueError: there is no such kind or field, or a value is not of its field's type.
    Example:
        >>> task = kbf.make_task("classification", text="review", label="stars")
        >>> task.kind, task.text, task.label
        ('classification', 'review', 'stars')
    """
    task_class = KINDS.find(kind)
    hints, known = get_type_hints(task_class), [field.name for field in fields(task_class)]
    for field, value in values.items():
        if field not in known:
            raise ValueError(
                f"A field of a {kind} task must be one of its own. Received: {field!r}. Use: {', '.join(known)}."
            )
        if not _fits(value, hints[field]):
            raise ValueError(
                f"`{field}` of a {kind} task must be {_describe(hints[field])}. Received: {abridge([repr(value)])}."
            )
    return task_class(**{field: tuple(v) if isinstance(v, list) else v for field, v in values.items()})


def _fits(value: Any, hint: Any) -> bool:
    if isinstance(hint, UnionType):
        return any(_fits(value, choice) for choice in get_args(hint))
    if get_origin(hint) is tuple:
        return isinstance(value, list | tuple) and all(_fits(entry, get_args(hint)[0]) for entry in value)
    if not isinstance(hint, type):  # the task checks it itself
        return True
    if isinstance(value, bool):  # a bool is an int in Python
        return hint is bool
    return isinstance(value, int | float if hint is float else hint)


def _describe(hint: Any) -> str:
    if isinstance(hint, UnionType):
        return " or ".join(_describe(choice) for choice in get_args(hint))
    if get_origin(hint) is tuple:
        return f"a list of {_describe(get_args(hint)[0])}"
    return WORDS.get(hint, str(hint))


# Read the task of a model directory from its `task.json`.


def read_task(folder: str | Path, read: Read = read_file) -> tuple[Task, int]:
    """Return the task of a model directory, and its sequence length.

    Args:
        read: as for `documents.read_json`.
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
        fields = read_json(path, read)
        sequence_length = fields.pop("sequence_length")
        if type(sequence_length) is not int or sequence_length < 3:
            raise ValueError("`sequence_length` is no number of tokens")
        return make_task(**fields), sequence_length
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: must say what the task is. Received: {error}. Save the model again.") from None
