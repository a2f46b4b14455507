"""Parameters of runs: which settings the fields of a form are, and a check of them before a run is created.

Run as `python -m flows.parameters FUNCTION` with two objects on standard input, the parameters of the deployment and
those given for a run: it prints what is wrong with them in one line, and ends with status 2. Nothing here imports
Prefect, which takes seconds.
"""

import json
import sys
from collections.abc import Sequence
from typing import Any

from flows.settling import make_paths_absolute
from keras_bert_flow.checks.run import STAGES, check_run, settle_initial_model
from keras_bert_flow.config.loading import load_config
from keras_bert_flow.config.pipeline import PipelineConfig, list_cells
from keras_bert_flow.console import interrupts
from keras_bert_flow.files.outputs import explain_os_error
from keras_bert_flow.files.paths import find_address
from keras_bert_flow.results.artifacts import canonical_json

CONFIG, OVERRIDES = "config_path", "overrides"
# Parameter of a flow → type, title, setting
FIELDS = {
    "corpus": (list[str] | None, "Text: files, folders and globs", "corpus.input"),
    "kind": (str | None, "Kind of task", "task.kind"),
    "train": (str | None, "Task table to learn from", "task.train"),
    "dev": (str | None, "Task table to be measured on", "task.dev"),
    "size": (str | None, "Size of the model", "model.size"),
    "steps": (int | None, "Budget: steps of pre-training", "pretraining.total_steps"),
    "backend": (str | None, "Keras backend", "backend"),
    "output": (str | None, "Folder of results", "runs"),
}
# Function of a flow → the stages whose inputs are checked
CHECKED: dict[str, Sequence[str]] = {
    "preprocess": ("vocabulary", "records"),
    "pretrain": ("pretraining",),
    "finetune": ("finetuning",),
    "evaluate": ("evaluation",),
    "bert_pipeline": STAGES,
    "bert_matrix": STAGES,
}


def list_overrides(fields: dict[str, Any], overrides: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the filled-in fields as `key=value` settings, followed by the overrides, which take precedence."""
    given = {name: value for name, value in fields.items() if value not in (None, "", [], ())}
    return (*(f"{FIELDS[name][2]}={canonical_json(value)}" for name, value in given.items()), *overrides)


def check_parameters(function: str, parameters: dict[str, Any]) -> None:
    """Check the settings and files of a run as the run itself does when it begins.

    Of a run with remote tables or models only the settings are checked: the rest would be downloaded first.

    Args:
        function: name of the flow's function.
        parameters: of the run.
    Raises:
        FileNotFoundError, OSError, ValueError: something that the user can fix.
    """
    path, given = parameters[CONFIG], tuple(parameters.get(OVERRIDES) or ())
    overrides = list_overrides({name: parameters.get(name) for name in FIELDS}, given)
    config = load_config(path, overrides)
    cells = [cell.overrides for cell in list_cells(config.matrix)] if config.matrix is not None else [()]
    for cell in cells:
        one = make_paths_absolute(load_config(path, (*overrides, *cell)))
        if not _is_elsewhere(one):
            check_run(settle_initial_model(one), CHECKED[function])


def _is_elsewhere(config: PipelineConfig) -> bool:
    teacher = config.distillation.teacher if config.distillation else None
    paths = (config.runs, config.task.train, config.task.dev, *config.task.extra_dev.values(), *config.corpus.input)
    return any(find_address(path) for path in (*paths, config.initial_model, teacher) if path)


def main(function: str) -> int:
    own, given = json.load(sys.stdin)
    if not isinstance(given, dict) or given.get(CONFIG, own.get(CONFIG)) != own.get(CONFIG):
        return 0  # the deployment's schema refuses it
    try:
        check_parameters(function, own | given)
    except OSError as error:
        print(explain_os_error(error))  # noqa: T201
        return interrupts.USER_ERROR
    except ValueError as error:
        print(" ".join(str(error).split()))  # noqa: T201
        return interrupts.USER_ERROR
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
