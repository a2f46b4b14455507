"""Commands that ask a model."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from keras_bert_flow.cli.app import app
from keras_bert_flow.cli.options import ChosenBackend, choose_backend
from keras_bert_flow.config import PipelineConfig

JSONL = "jsonl"


@app.command()
def predict(
    model: Annotated[Path, typer.Option(help="A fine-tuned model directory.")],
    texts: Annotated[list[str] | None, typer.Argument(help="What to ask; left out, lines of standard input.")] = None,
    input: Annotated[Path | None, typer.Option(help="A file in the task's format, with or without labels.")] = None,
    output: Annotated[Path | None, typer.Option(help="File for the predictions; left out, standard output.")] = None,
    format: Annotated[
        str, typer.Option(help="jsonl; or of a file glue, squad or conll, as those who score such tasks take it.")
    ] = JSONL,
    set: Annotated[
        list[str] | None, typer.Option("--set", help="Replace what the model's task says: text=sentence. Repeatable.")
    ] = None,
    backend: ChosenBackend = None,
) -> None:
    """Ask a fine-tuned model, and print a line of JSON for each answer.

    A pair of texts is given with a tab between them, and what has more parts as a JSON object.
    """
    if format != JSONL and (input is None or output is None):
        raise ValueError(
            f"A format of whole files must have --input and --output. Received: --format {format} without. Name both."
        )
    choose_backend(PipelineConfig(), backend)
    from keras_bert_flow.cli.task_files import change_task, write_file
    from keras_bert_flow.prediction.lines import read_items, write_lines
    from keras_bert_flow.prediction.predictor import Predictor

    predictor = Predictor(model)
    if set:
        predictor.task = change_task(predictor.task, set)
    if format != JSONL:
        write_file(predictor, input, output, format)
    elif input is not None:
        write_lines(predictor.predict_examples(predictor.task.read(input, has_labels=False)), output)
    elif texts:
        write_lines(predictor.predict(list(read_items(texts))), output)
    else:
        write_lines(predictor.predict_stream(read_items(sys.stdin), at_once=1), output)
