"""Check the paths that a command is given before it begins, and fetch the remote ones."""

import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_bert_flow.config.limits import BUILTIN
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.files.outputs import check_apart
from keras_bert_flow.files.paths import check_local, find_address, is_configuration
from keras_bert_flow.stores.fetching import cache_root

# What each command calls by these names may be at another place, such as s3://bucket/x.
MODELS = ("model", "teacher", "initial_model", "base")
FILES = ("input", "predictions", "minimal_pairs", "lines")
OUTPUTS = ("output", "index", "target")  # what a command writes; every other path is read
PATTERNS = ("input", "imported", "held_out", "text")  # names of text and records, which may be globs
ANYWHERE = ("records", "vocab", "finetuned", "pretrained", "earlier", "source", *FILES, *MODELS)


def settle_paths(values: Mapping[str, Any], options: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of a command's options: remote inputs fetched to this disk, a configuration's newest model.

    Records may still be on their way; see `stores.fetching`.

    Args:
        values: name of each parameter → its value.
        options: name of each parameter → the option as a user gives it.
    Raises:
        ValueError: a path is at another place and must not be, or is a folder around models and not one, or is to be
            written and read.
        FileNotFoundError, OSError: of `stores.fetching.fetch`.
    """
    listed = {name: value if isinstance(value, list | tuple) else (value,) for name, value in values.items()}
    paths = [(name, path) for name, given in listed.items() for path in given if isinstance(path, Path)]
    for name, path in paths:
        if name not in ANYWHERE:
            check_local(path, options[name])
    _check_apart(values, [path for name, path in paths if name not in OUTPUTS and not find_address(path)])
    settled = dict(values)
    for name, path in paths:
        if name in ANYWHERE and find_address(path):
            from keras_bert_flow.stores.fetching import fetch

            fetched = fetch(path, wait=name != "records")
            given = settled[name]
            is_list = isinstance(given, list | tuple)
            settled[name] = [fetched if one == path else one for one in given] if is_list else fetched
        if name in MODELS:
            if is_configuration(settled[name]):
                from keras_bert_flow.results.choosing import find_model

                settled[name] = find_model(settled[name])
            check_model(settled[name])
    return settled


def _check_apart(values: Mapping[str, Any], read: Sequence[Path]) -> None:
    """Raise ValueError if an output of a command would replace one of its inputs, standard streams included."""
    patterns = [path for name in PATTERNS if isinstance(given := values.get(name), list) for path in given]
    inputs = [*read, *(path for path in patterns if not find_address(path))]
    for name in OUTPUTS:
        output = values.get(name)
        # The output of some commands may be elsewhere and is text; the `target` of one is no path, but a format.
        if not (isinstance(output, Path) or (name == "output" and output)) or find_address(output):
            continue
        check_apart(output, inputs)
        if _is_open(0, Path(output)):
            raise ValueError(
                f"The output must not replace what is read. Received: {output}, which is standard input. Choose "
                "another path."
            )
    for path in map(Path, inputs):
        if _is_open(1, path):
            raise ValueError(
                f"The output must not go into what is read. Received: {path}, which is standard output. Choose another "
                "file."
            )


def _is_open(descriptor: int, path: Path) -> bool:
    """Return whether a descriptor is open on a regular file."""
    try:
        status = os.fstat(descriptor)
        return stat.S_ISREG(status.st_mode) and os.path.samestat(status, path.stat())
    except OSError:
        return False


def check_model(folder: Path) -> None:
    """Check that a path is a model directory rather than a folder that contains some.

    Raises:
        ValueError: it is what `kbf pretrain` or `kbf finetune` made; the message names a model in it.
    """
    if (folder / "config.json").is_file():
        return
    for pattern in ("model", "pretrained/seed-*/model"):
        for inner in sorted(folder.glob(f"{pattern}/config.json")):
            raise ValueError(f"A model directory must hold config.json. Received: {folder}. Try {inner.parent}")


# Write the built-in corpus and task for a command whose configuration says `builtin`.


def fill_builtin_corpus(settings: PipelineConfig, output: str) -> PipelineConfig:
    """Replace `builtin` in the input of a corpus by files, which are written beside the output.

    Raises:
        ValueError: the output is in an object store.
    """
    if BUILTIN not in settings.corpus.input:
        return settings
    check_local(output, "The output of a job with the built-in corpus")
    return _fill(settings, Path(output).absolute().parent)


def fill_builtin_task(settings: PipelineConfig) -> PipelineConfig:
    """Replace `builtin` in a task by its tables, written to the folder that `kbf run` uses."""
    if settings.task.train != BUILTIN:
        return settings
    folder = cache_root() / "runs" if find_address(settings.runs) else Path(settings.runs).absolute()
    return _fill(settings, folder)


def _fill(settings: PipelineConfig, folder: Path) -> PipelineConfig:
    from keras_bert_flow.results.stages.corpus import corpus_key, publish_builtin, resolve_builtin

    return resolve_builtin(settings, publish_builtin(folder / "corpus" / corpus_key()))
