"""Commands that predict and search with a model."""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from keras_bert_flow.cli.application import app, resolve_paths
from keras_bert_flow.cli.options import ChosenBackend, fix_backend
from keras_bert_flow.config.finetuning import TASKS
from keras_bert_flow.config.loading import load_config
from keras_bert_flow.console.progress import counting_progress, working
from keras_bert_flow.conversion.directory import ModelDirectory, check_model_directory
from keras_bert_flow.files.outputs import check_apart, check_output_file
from keras_bert_flow.files.paths import find_address
from keras_bert_flow.prediction.lines import (
    ARRAYS,
    check_arrays,
    check_index,
    check_lines_file,
    read_items,
    read_waiting_items,
    read_waiting_texts,
    refuse_parquet,
    write_arrays,
    write_lines,
)
from keras_bert_flow.prediction.load import FINE_TUNED, check_request, find_task, has_unnamed_outputs, name_outputs
from keras_bert_flow.results.publishing import verify
from keras_bert_flow.tasks.core.task import Task, with_inputs
from keras_bert_flow.tasks.formats.glue import check_format, write_official
from keras_bert_flow.tasks.registry import make_task

# Change how a model's task reads files.

OF_THE_MODEL = {"kind", "labels"}


def change_task(task: Task, overrides: Sequence[str], model: Path) -> Task:
    """Return the task of a model with some settings replaced (`name=value`), for files of another layout.

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


JSONL = "jsonl"
# Format of predictions → the endings of its files. Lines of JSON are often in a .json, too.
PREDICTIONS = {"jsonl": (".jsonl", ".ndjson", ".json"), "glue": (".tsv",), "squad": (".json",), "conll": (".conll",)}


def check_prediction(
    folder: Path,
    asked_as: str | None,
    options: Mapping[str, Any],
    files: Sequence[Path | None],
    output: Path | None,
    format: str = JSONL,
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


@app.command()
def predict(
    texts: Annotated[
        list[str] | None,
        typer.Argument(help="Texts to predict for. Default: lines of standard input. Without --model the first is it."),
    ] = None,
    model: Annotated[
        Path | None, typer.Option(help="A model directory, or a configuration: its newest and best model.")
    ] = None,
    asked_as: Annotated[
        str | None,
        typer.Option("--as", help="task (what it was fine-tuned for), fill_mask, features or sentence_embedding."),
    ] = None,
    input: Annotated[
        Path | None,
        typer.Option(help="Input file: in the task's format, with or without labels; otherwise one text per line."),
    ] = None,
    output: Annotated[Path | None, typer.Option(help="File for the predictions. Default: standard output.")] = None,
    format: Annotated[
        str, typer.Option(help="jsonl; with --input also glue, squad or conll, the official formats of these tasks.")
    ] = JSONL,
    set: Annotated[
        list[str] | None,
        typer.Option("--set", help="Override a setting of the model's task: text=sentence. Repeatable."),
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="fill_mask: number of tokens per [MASK]. Default: 5.")] = None,
    layers: Annotated[
        str | None,
        typer.Option(help="features: layers to concatenate, as --layers=-4,-3,-2,-1. Default: -1, the last."),
    ] = None,
    pooling: Annotated[
        str | None, typer.Option(help="mean, cls or max; for features also none, which is the default.")
    ] = None,
    batch_positions: Annotated[int | None, typer.Option(help="Tokens per batch, including padding.")] = None,
    backend: ChosenBackend = None,
) -> None:
    """Predict with a model, and print one line of JSON per prediction.

    A pair of texts is separated by a tab; inputs with more parts are JSON objects. Features can also be written as
    arrays, to an --output that ends in .npz.
    """
    texts = texts or []
    if model is None:
        model, texts = _take_model(texts)
    given = {"top_k": top_k, "layers": layers, "pooling": pooling, "batch_positions": batch_positions}
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if layers is not None:
        options["layers"] = _read_layers(layers)
    fix_backend(backend)
    is_fine_tuned = asked_as in (None, FINE_TUNED)
    _check_file_options(is_fine_tuned, format, set, input, output)
    directory = check_prediction(model, asked_as, options, [] if is_fine_tuned else [input], output, format)
    task: Any = find_task(directory)[0] if is_fine_tuned else None
    if set:
        task = change_task(task, set, model)
    if format != JSONL:
        check_format(format, task)
    examples: Any = task.read(input, has_labels=False) if task and input else None
    from keras_bert_flow.prediction.base_predictor import AT_ONCE
    from keras_bert_flow.prediction.load import load

    write: Any = write_arrays if output is not None and output.suffix == ARRAYS else write_lines
    with working(f"Loading {model}"):
        asked: Any = load(directory, asked_as, **options)
    if set:
        asked.task = task
    if format != JSONL and output is not None:
        write_official(output, task, examples, asked.answer(examples))
    elif input is not None:
        examples = asked.read(input) if examples is None else examples
        total = len(examples) if isinstance(examples, Sequence) else None
        # No bar between lines of answers on the same terminal.
        with (
            nullcontext(lambda _: None)
            if output is None and sys.stdout.isatty()
            else counting_progress(total, "Asking") as advance
        ):
            answers = asked.answer_blocks(examples, advance)
            write(answers if task is None else _with_inputs(examples, answers), output)
    else:
        chunks = [read_items(texts, "Text")] if texts else read_waiting_items(sys.stdin.fileno(), AT_ONCE)
        write(asked.predict_chunks(chunks), output)
    asked.tell_cut_texts()


@app.command()
def search(
    model: Annotated[Path, typer.Option(help="Model directory: a fine-tuned embedder, or any encoder.")],
    lines: Annotated[Path, typer.Option(help="File to search: UTF-8, one text per line.")],
    queries: Annotated[list[str] | None, typer.Argument(help="Queries. Default: lines of standard input.")] = None,
    index: Annotated[
        Path | None, typer.Option(help="Folder for the vectors of the lines; they are computed once, then read.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Number of hits per query.")] = 5,
    output: Annotated[Path | None, typer.Option(help="File for the hits. Default: standard output.")] = None,
    backend: ChosenBackend = None,
) -> None:
    """Search the lines of a file by meaning, and print one line of JSON per query."""
    fix_backend(backend)
    refuse_parquet(lines)
    check_prediction(model, "sentence_embedding", {}, [lines], output)
    if index is not None:
        check_apart(index, [model])
        check_index(index)
    from keras_bert_flow.prediction.base_predictor import AT_ONCE
    from keras_bert_flow.prediction.search import SemanticSearch

    with working(f"Reading the vectors of {lines}, or making them"):
        found = SemanticSearch(model, lines, index)
    if queries:
        write_lines([found.search(queries, top)], output)
    else:
        write_lines(found.search_chunks(read_waiting_texts(sys.stdin.fileno(), AT_ONCE), top), output)


def _take_model(texts: list[str]) -> tuple[Path, list[str]]:
    """Return the model that the first argument is where there is no option, and the texts after it.

    Raises:
        ValueError: none is named.
    """
    if not texts or not (Path(texts[0]).exists() or find_address(texts[0])):
        received = f"{texts[0]!r} first, which is no path" if texts else "neither --model nor a path"
        raise ValueError(f"A model must be named. Received: {received}. Try kbf predict mine.yaml 'a text'.")
    resolved = resolve_paths({"model": Path(texts[0])}, {"model": "the model"})
    return resolved["model"], texts[1:]


def _check_file_options(is_fine_tuned: bool, format: str, set: list[str] | None, *files: Path | None) -> None:
    if (set or format != JSONL) and not is_fine_tuned:
        raise ValueError(
            "--set and --format must be of what a model was fine-tuned for. Received: --as something else beside them. "
            "Leave them out."
        )
    if format != JSONL and None in files:
        raise ValueError(
            f"A format of whole files must have --input and --output. Received: --format {format} without. Name both."
        )


def _with_inputs(examples: Sequence[Any], blocks: Iterable[Sequence[Any]]) -> Iterator[list[Any]]:
    """Yield blocks of predictions with their texts, for `kbf evaluate --predictions`."""
    first = 0
    for answers in blocks:
        yield with_inputs(examples[first : first + len(answers)], answers)
        first += len(answers)


def _read_layers(layers: str) -> tuple[int, ...]:
    try:
        return tuple(int(layer) for layer in layers.split(","))
    except ValueError:
        raise ValueError(
            f"Layers must be numbers with commas between them. Received: --layers={layers}. "
            "Try --layers=-4,-3,-2,-1, the last four."
        ) from None
