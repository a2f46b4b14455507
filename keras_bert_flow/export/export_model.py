"""Export a model directory for serving: write, reload in the runtime, compare, and only then publish."""

import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import keras

from keras_bert_flow.console.job_progress import JobPart, note, plan_parts
from keras_bert_flow.conversion.directory_files import write_json
from keras_bert_flow.conversion.formats.huggingface import CONFIG, TOKENIZER, copy_files
from keras_bert_flow.conversion.sentence_files import INPUT_FILES
from keras_bert_flow.export.comparison import COMPARING, TOLERANCE, Comparison, compare, in_runtime
from keras_bert_flow.export.format import ExportFormat, find_export_format
from keras_bert_flow.export.request import (
    MAX_CHANGED,
    check_export,
    check_max_changed,
    choose_backend,
    find_kind,
)
from keras_bert_flow.export.served_model import ServedModel, StringInputs, load_served
from keras_bert_flow.files.inputs import hold
from keras_bert_flow.files.outputs import EXPORTED
from keras_bert_flow.files.paths import check_local
from keras_bert_flow.prediction.load import EMBEDDING, find_task, has_task
from keras_bert_flow.results.artifacts import package_version, publishing
from keras_bert_flow.stores.fetching import fetch
from keras_bert_flow.tasks.core.task import TASK_FILE
from keras_bert_flow.text.tokenizers.settings import pad_right

DESCRIPTION = EXPORTED
WRITING, LOADING = JobPart("writing"), JobPart("loading it in its runtime")


def export_model(
    folder: str | Path,
    output: str | Path,
    format: str,
    int8: bool = False,
    asked_as: str | None = None,
    strings: bool = False,
    max_changed: float = MAX_CHANGED,
) -> Comparison:
    """Export a model to a serving format, with the backend that Keras was imported with.

    Args:
        folder: a model directory, local or remote.
        output: new folder for the exported file, the tokenizer files, and `export.json`.
        format: one of `format.FORMATS`.
        int8: store weights as int8.
        asked_as: what the model is exported as; see `request.find_kind`.
        strings: let a SavedModel also take texts.
        max_changed: the share of the predictions on the compared texts that int8 may change.
    Returns:
        How the exported model, in its runtime, compares with the original.
    Raises:
        FileExistsError: the output exists.
        FileNotFoundError: the model, or a file of it, is missing.
        ValueError: the backend cannot write the format, a package is missing, a file is damaged, or the exported model
            is refused by its runtime, computes different outputs, or changes more predictions by int8.
    Example:
        >>> comparison = kbf.export_model("classifier", "out/onnx", format="onnx")
    """
    output, backend = check_local(output), choose_backend(format, keras.backend.backend())
    check_max_changed(max_changed if int8 else None, int8)
    folder = fetch(folder)
    inputs = hold(folder)
    tokenizer: Any = check_export(folder, output, format, backend, int8, asked_as, strings)
    plan_parts(WRITING, LOADING, COMPARING)
    note(WRITING, 0)
    known, model = find_export_format(format), load_served(folder, find_kind(folder, asked_as))
    texts = None
    if strings:
        length = find_task(folder)[1] if has_task(folder) else model.axes["length"]
        texts = StringInputs(tokenizer, length)
        model = replace(model, strings=texts)
    with publishing(output) as place:
        path = place / known.file
        _write(known, model, path, int8)
        if texts is not None:
            from keras_bert_flow.export.tensorflow_strings import compare_strings

            compare_strings(path, texts)
        note(LOADING, 0)
        with in_runtime(known.title):
            run = known.load(path)
        note(COMPARING, 0)
        comparison = compare(model, run, tokenizer, known.title, int8, max_changed)
        names = (CONFIG, *TOKENIZER, TASK_FILE, *(INPUT_FILES if model.kind == EMBEDDING else ()))
        copy_files({name: folder / name for name in names if (folder / name).is_file()}, place)
        pad_right(place)
        write_json(place / DESCRIPTION, _describe(known, model, folder, format, int8, comparison))
        inputs.check()
    return comparison


def _write(known: ExportFormat, model: ServedModel, path: Path, int8: bool) -> None:
    try:
        known.write(model, path, int8)
    except OSError:
        raise
    except Exception as error:  # each exporter raises its own errors
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise ValueError(
            f"A model must be one that {known.title} can hold. Received: {reason}. Try another --format or --backend."
        ) from error


def _describe(
    known: ExportFormat, model: ServedModel, folder: Path, format: str, int8: bool, comparison: Comparison
) -> dict[str, Any]:
    """Return the content of `export.json`."""
    task, sequence_length = find_task(folder) if has_task(folder) else (None, None)
    axes = list(model.axes)
    shapes = {name: value.shape for name, value in model.model.output.items()}
    outputs = {name: [size or axes[place] for place, size in enumerate(shape)] for name, shape in shapes.items()}
    packages = {model.backend, *known.packages[model.backend], known.runtime}
    return {
        "format": format,
        "file": known.file,
        "kind": model.kind,
        "inputs": {name: {"dtype": "int64", "shape": axes} for name in model.inputs},
        "outputs": {name: {"dtype": "float32", "shape": shape} for name, shape in outputs.items()},
        "labels": list(task.labels) if task and model.kind == task.kind else [],
        "max_positions": model.axes["length"],
        "sequence_length": sequence_length,
        "int8": int8,
        "strings": model.strings is not None,
        "comparison": asdict(comparison) | ({"changed": comparison.changed} if int8 else {"tolerance": TOLERANCE}),
        "versions": {"keras-bert-flow": package_version(), "keras": keras.__version__}
        | {name: sys.modules[name].__version__ for name in sorted(packages)},
    }
