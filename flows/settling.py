"""Resolve the parameters of a flow, a file and settings, to the one configuration that every stage reads."""

import errno
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from keras_bert_flow.checks.run import fetch_inputs, settle_initial_model
from keras_bert_flow.config.limits import BUILTIN
from keras_bert_flow.config.loading import load_config
from keras_bert_flow.config.pipeline import PipelineConfig, resolve_precision
from keras_bert_flow.files.paths import find_address, make_folder
from keras_bert_flow.results.artifacts import canonical_json, write_atomically
from keras_bert_flow.stores.fetching import cache_root

DEFAULT_CONFIG = "configs/quickstart.yaml"
DIGEST_LENGTH = 16  # hexadecimal digits, as in content keys


def settle_config(config_path: str, overrides: Sequence[str] = ()) -> PipelineConfig:
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
    return resolve_precision(settle_initial_model(loaded))


def make_paths_absolute(config: PipelineConfig) -> PipelineConfig:
    """Resolve paths against the current working directory, so that they mean the same in every child process."""
    corpus, task, vocabulary, evaluation = config.corpus, config.task, config.vocabulary, config.evaluation
    files: dict[str, Any] = {"train": _absolute(task.train), "dev": _absolute(task.dev)}
    files["extra_dev"] = {name: _absolute(path) for name, path in task.extra_dev.items()}
    return config.model_copy(
        update={
            "runs": _absolute(config.runs),
            "initial_model": config.initial_model and _absolute(config.initial_model),
            "corpus": corpus.model_copy(update={"input": tuple(_absolute(item) for item in corpus.input)}),
            "task": task.model_copy(update=files),
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


def settle_folder(path: str) -> Path:
    """Return a folder parameter of a flow as a path, made absolute if it is local."""
    return Path(path) if find_address(path) else Path(path).absolute()


def local_runs(config: PipelineConfig) -> Path:
    """Return the folder for a run's local files: the run's own if it is local, else one in the cache."""
    return cache_root() / "runs" if find_address(config.runs) else Path(config.runs)


def _absolute(path: str) -> str:
    return path if path == BUILTIN or "://" in path else os.path.abspath(path)
