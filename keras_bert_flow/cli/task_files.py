"""Change how a model's task reads files."""

from collections.abc import Sequence
from pathlib import Path

from keras_bert_flow.config.loading import load_config
from keras_bert_flow.config.tasks import TASKS
from keras_bert_flow.prediction.derived_task import has_unnamed_outputs, name_outputs
from keras_bert_flow.tasks.core.task import Task
from keras_bert_flow.tasks.registry import make_task

OF_THE_MODEL = {"kind", "labels"}


def change_task(task: Task, overrides: Sequence[str], model: Path) -> Task:
    """Return the task of a model with other settings, each `name=value`, for files that are laid out otherwise.

    Its outputs can be named if they have no names of their own.

    Raises:
        ValueError: there is no such setting, or its value is wrong, or the model stands and falls with it.
    """
    changes = load_config(None, overrides, TASKS[task.kind]).model_dump(exclude_unset=True)
    if has_unnamed_outputs(model, task):
        task = name_outputs(model, task, changes.pop("labels", ()))
    if fixed := sorted(OF_THE_MODEL & changes.keys()):
        raise ValueError(
            f"The choices of a model must be those that it was trained on. Received: --set {', '.join(fixed)}. "
            "Leave it out."
        )
    return make_task(**task.get_config() | changes)
