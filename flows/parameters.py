"""Parameters of runs, a file and settings: their fields in a form, and the one configuration that they resolve to.

Run as `python -m flows.parameters FUNCTION` with two objects on standard input, the parameters of the deployment and
those given for a run: it checks them before the run is created, prints what is wrong with them in one line, and ends
with status 2. Nothing here imports Prefect, which takes seconds.
"""

import errno
import hashlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from keras_bert_flow.checks.run import STAGES, check_run, fetch_inputs, resolve_initial_model
from keras_bert_flow.config.limits import BUILTIN
from keras_bert_flow.config.loading import load_config
from keras_bert_flow.config.pipeline import PipelineConfig, list_cells, resolve_precision
from keras_bert_flow.console import interrupts
from keras_bert_flow.files.outputs import explain_os_error
from keras_bert_flow.files.paths import find_address, make_folder
from keras_bert_flow.results.artifacts import canonical_json, write_atomically
from keras_bert_flow.stores.fetching import cache_root

DEFAULT_CONFIG = "configs/quickstart.yaml"
DIGEST_LENGTH = 16  # hexadecimal digits, as in content keys
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


def resolve_config(config_path: str, overrides: Sequence[str] = ()) -> PipelineConfig:
    """Load, check and resolve the configuration of a run.

    Paths are made absolute, remote tables and models are downloaded, and `precision: auto` is resolved.

    Args:
        overrides: `key.sub=value` settings; the last one of a key wins.
    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a setting is invalid; the message says which and why.
    """
    read = load_config(config_path, overrides)
    if read.matrix is not None:
        raise ValueError(
            f"A configuration with `matrix` must be run by kbf run or the flow bert-matrix. Received: {config_path}. "
            "Start that, or choose one of its runs by settings, with matrix=null among them."
        )
    loaded = fetch_inputs(make_paths_absolute(read))
    return resolve_precision(resolve_initial_model(loaded))


def make_paths_absolute(config: PipelineConfig) -> PipelineConfig:
    """Resolve paths against the current working directory, so that they mean the same in every child process."""
    corpus, task, vocabulary, evaluation = config.corpus, config.task, config.vocabulary, config.evaluation
    files: dict[str, Any] = {"train": _absolute(task.train), "dev": _absolute(task.dev)}
    teacher = config.finetuning.teacher
    files["extra_dev"] = {name: _absolute(path) for name, path in task.extra_dev.items()}
    if (augmentation := config.augmentation) is not None:
        paths = {name: getattr(augmentation, name) for name in ("model", "stop_words")}
        given = {name: path and _absolute(path) for name, path in paths.items()}
        config = config.model_copy(update={"augmentation": augmentation.model_copy(update=given)})
    return config.model_copy(
        update={
            "runs": _absolute(config.runs),
            "initial_model": config.initial_model and _absolute(config.initial_model),
            "corpus": corpus.model_copy(update={"input": tuple(_absolute(item) for item in corpus.input)}),
            "task": task.model_copy(update=files),
            "finetuning": config.finetuning.model_copy(update={"teacher": teacher and _absolute(teacher)}),
            "vocabulary": vocabulary.model_copy(update={"file": vocabulary.file and _absolute(vocabulary.file)}),
            "evaluation": evaluation.model_copy(
                update={"minimal_pairs": evaluation.minimal_pairs and _absolute(evaluation.minimal_pairs)}
            ),
        }
    )


def write_config(config: PipelineConfig) -> Path:
    """Write a configuration to this disk, under a name derived from its content."""
    values = config.model_dump(mode="json")
    digest = hashlib.sha256(canonical_json(values).encode()).hexdigest()[:DIGEST_LENGTH]
    path = local_runs(config) / "configs" / f"{digest}.yaml"
    content = yaml.safe_dump(values, sort_keys=False, allow_unicode=True).encode()
    if not path.is_file() or path.read_bytes() != content:
        try:
            make_folder(path.parent, in_store=True)
            write_atomically(path, content)
        except OSError as error:
            if error.errno not in (errno.EROFS, errno.EACCES):
                raise  # where results may only be read, what is finished is shown, and no command is run
    return path


def resolve_folder(path: str) -> Path:
    """Return a folder parameter of a flow as a path, made absolute if it is local."""
    return Path(path) if find_address(path) else Path(path).absolute()


def local_runs(config: PipelineConfig) -> Path:
    """Return the folder for a run's local files: the run's own if it is local, else one in the cache."""
    return cache_root() / "runs" if find_address(config.runs) else Path(config.runs)


def _absolute(path: str) -> str:
    return path if path == BUILTIN or "://" in path else os.path.abspath(path)


def check_parameters(function: str, parameters: dict[str, Any]) -> None:
    """Check the settings and files of a run as the run itself does when it begins.

    Of a run with remote tables or models only the settings are checked: the rest would be downloaded first.

    Args:
        function: name of the flow's function.
        parameters: of the run.
    Raises:
        FileNotFoundError, OSError, ValueError: something that the user can fix.
    """
    file, given = parameters[CONFIG], tuple(parameters.get(OVERRIDES) or ())
    overrides = list_overrides({name: parameters.get(name) for name in FIELDS}, given)
    config = load_config(file, overrides)
    cells = [cell.overrides for cell in list_cells(config.matrix)] if config.matrix is not None else [()]
    for cell in cells:
        one = make_paths_absolute(load_config(file, (*overrides, *cell)))
        models = [one.initial_model, one.finetuning.teacher, one.distillation.teacher if one.distillation else None]
        models += [one.augmentation.model, one.augmentation.stop_words] if one.augmentation else []
        paths = (one.runs, one.task.train, one.task.dev, *one.task.extra_dev.values(), *one.corpus.input)
        if not any(find_address(path) for path in (*paths, *models) if path):
            check_run(resolve_initial_model(one), CHECKED[function])


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
