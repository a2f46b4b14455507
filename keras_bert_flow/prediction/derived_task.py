"""Find what a model directory is asked: its `task.json`, or what `config.json` says of the head."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_bert_flow.conversion.directory_files import read_json
from keras_bert_flow.conversion.hf_config import number_labels, read_labels
from keras_bert_flow.tasks.make import make_task
from keras_bert_flow.tasks.stored import TASK_FILE, read_task
from keras_bert_flow.tasks.tag_schemes import PLAIN, is_tag
from keras_bert_flow.tasks.task import Task

ARCHITECTURES = {
    "BertForTokenClassification": "token_classification",
    "BertForQuestionAnswering": "question_answering",
    "BertForMultipleChoice": "multiple_choice",
}
# what `transformers` calls the problems of `BertForSequenceClassification`
PROBLEMS = {
    "single_label_classification": "classification",
    "regression": "regression",
    "multi_label_classification": "multi_label",
}


def has_task(folder: str | Path) -> bool:
    """Say whether a directory with a config.json says what it is asked."""
    return (Path(folder) / TASK_FILE).is_file() or _find_kind(read_json(Path(folder) / "config.json")) is not None


def find_task(folder: str | Path) -> tuple[Task, int]:
    """Return the task of a model directory, and its sequence length.

    Without `task.json`, the architecture, `problem_type` and `id2label` decide; texts may be as long as the model has
    positions. The columns of a table, or a threshold for questions without an answer, are then the defaults.

    Raises:
        FileNotFoundError: the directory or a file of it is missing, or nothing in it names a task.
        ValueError: a file is damaged.
    """
    path = Path(folder) / "config.json"
    if (Path(folder) / TASK_FILE).is_file() or not path.is_file():
        return read_task(folder)
    config = read_json(path)
    kind = _find_kind(config)
    if kind is None:
        return read_task(folder)  # which says what is missing
    values: dict[str, Any] = {}
    if kind in ("classification", "multi_label", "token_classification"):
        values["labels"] = read_labels(config, str(path)) or number_labels(_count_labels(config))
    if kind == "multiple_choice":
        values["question"] = None  # as in SWAG; one with questions needs a task.json
    if kind == "token_classification":
        values["scheme"] = guess_scheme(values["labels"])
        values["main_metric"] = "accuracy" if values["scheme"] == PLAIN else "f1"
    return make_task(kind, **values), config.get("max_position_embeddings", 512)


def guess_scheme(tags: Sequence[str]) -> str:
    """Return the scheme of the tags of a head; IOB1 and IOB2, which decode alike, are not told apart where B occurs."""
    if not any(tag.startswith(("B-", "I-", "S-", "E-")) for tag in tags):
        return PLAIN
    return next((scheme for scheme in ("IOB2", "BIOES") if all(is_tag(tag, scheme) for tag in tags)), PLAIN)


def _find_kind(config: Mapping[str, Any]) -> str | None:
    architectures = config.get("architectures")
    architecture = architectures[0] if isinstance(architectures, list) and architectures else None
    if architecture != "BertForSequenceClassification":
        return ARCHITECTURES.get(architecture)
    problem = config.get("problem_type") or (
        "regression" if _count_labels(config) == 1 else "single_label_classification"
    )
    return PROBLEMS.get(problem)


def _count_labels(config: Mapping[str, Any]) -> int:
    """Return the number of outputs as `transformers` takes it: two where nothing is said."""
    names = config.get("id2label")
    return len(names) if isinstance(names, Mapping) else config.get("num_labels", 2)
