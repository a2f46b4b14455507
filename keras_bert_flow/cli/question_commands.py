"""Commands that ask a model."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from keras_bert_flow.cli.app import app
from keras_bert_flow.cli.options import ChosenBackend, choose_backend
from keras_bert_flow.config import PipelineConfig


@app.command()
def predict(
    model: Annotated[Path, typer.Option(help="A fine-tuned model directory.")],
    texts: Annotated[list[str] | None, typer.Argument(help="What to ask; left out, lines of standard input.")] = None,
    input: Annotated[Path | None, typer.Option(help="A file in the task's format, with or without labels.")] = None,
    output: Annotated[Path | None, typer.Option(help="File for the predictions; left out, standard output.")] = None,
    backend: ChosenBackend = None,
) -> None:
    """Ask a fine-tuned model, and print a line of JSON for each answer.

    A pair of texts is given with a tab between them, and what has more parts as a JSON object.
    """
    choose_backend(PipelineConfig(), backend)
    from keras_bert_flow.prediction.lines import read_items, write_lines
    from keras_bert_flow.prediction.predictor import Predictor

    predictor = Predictor(model)
    if input is not None:
        write_lines(predictor.predict_examples(predictor.task.read(input, has_labels=False)), output)
    elif texts:
        write_lines(predictor.predict(list(read_items(texts))), output)
    else:
        write_lines(predictor.predict_stream(read_items(sys.stdin), at_once=1), output)


@app.command()
def search(
    model: Annotated[Path, typer.Option(help="A model directory: a fine-tuned embedder, or any encoder.")],
    lines: Annotated[Path, typer.Option(help="The file to search: UTF-8, a text a line.")],
    queries: Annotated[
        list[str] | None, typer.Argument(help="What to look for; left out, lines of standard input.")
    ] = None,
    index: Annotated[
        Path | None, typer.Option(help="Folder for the vectors of the lines: made once, then read.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Hits of a query.")] = 5,
    output: Annotated[Path | None, typer.Option(help="File for what is found; left out, standard output.")] = None,
    backend: ChosenBackend = None,
) -> None:
    """Find the lines of a file that mean what is asked, and print a line of JSON for each query."""
    choose_backend(PipelineConfig(), backend)
    from keras_bert_flow.prediction.lines import write_lines
    from keras_bert_flow.prediction.search import SemanticSearch

    found = SemanticSearch(model, lines, index)
    if queries:
        write_lines(found.search(queries, top), output)
    else:
        asked = (line.strip() for line in sys.stdin)
        write_lines((hit for query in asked if query for hit in found.search([query], top)), output)
