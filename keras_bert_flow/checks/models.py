"""Check model directories, and requests for predictions, before Keras is imported."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_bert_flow.conversion.adapters import check_whole
from keras_bert_flow.conversion.directory import ModelDirectory
from keras_bert_flow.files.outputs import check_apart, check_output_file
from keras_bert_flow.prediction.lines import ARRAYS, check_arrays, check_index, check_lines_file, refuse_parquet
from keras_bert_flow.prediction.load import check_request
from keras_bert_flow.results.publishing import verify


def check_model_directory(folder: Path) -> ModelDirectory:
    """Check that a model directory is complete and has a tokenizer, and return it, to be loaded.

    The weights are not decoded; if a manifest lists the files, their digests are compared with it.

    Raises:
        FileNotFoundError: the folder or a file of it is missing.
        ValueError: a file is damaged, or does not fit the others.
    """
    directory = ModelDirectory(folder)
    directory.verify()
    _ = directory.tensors, directory.tokenizer
    return directory


def check_initial_model(folder: Path) -> ModelDirectory:
    """Check the initial or teacher model of a training, as `check_model_directory` does; adapters are refused.

    The base model of an adapter is stored elsewhere and may change, and no content key covers it.
    """
    check_whole(folder)
    return check_model_directory(folder)


# Format of predictions → the endings of its files. Lines of JSON are often in a .json, too.
PREDICTIONS = {"jsonl": (".jsonl", ".ndjson", ".json"), "glue": (".tsv",), "squad": (".json",), "conll": (".conll",)}


def check_prediction(
    folder: Path,
    asked_as: str | None,
    options: Mapping[str, Any],
    files: Sequence[Path | None],
    output: Path | None,
    format: str = "jsonl",
) -> ModelDirectory:
    """Check the inputs of `kbf predict`, and return its model.

    Args:
        files: files to read; None entries are ignored.
        output: file to write, or None.
        format: format in which it is written, unless its ending is that of arrays.
    """
    directory = check_model_directory(folder)
    check_request(directory, asked_as, options)
    for path in filter(None, files):
        check_lines_file(path)
        verify(path)
    if output is not None:
        check_apart(output, [folder])  # the model may be named by the first text, or by a configuration
        check_arrays(output, asked_as)
        endings = (ARRAYS,) if output.suffix == ARRAYS else PREDICTIONS.get(format, ())
        check_output_file(output, endings=endings)
    return directory


def check_search(model: Path, lines: Path, index: Path | None, output: Path | None) -> None:
    """Check the inputs of `kbf search`."""
    refuse_parquet(lines)
    check_prediction(model, "sentence_embedding", {}, [lines], output)
    if index is not None:
        check_apart(index, [model])
        check_index(index)
