"""The command that exports a model for serving."""

import os
from pathlib import Path
from typing import Annotated

import typer

from keras_bert_flow.cli.application import app
from keras_bert_flow.cli.work_measure import following
from keras_bert_flow.export.request import MAX_CHANGED, check_export, check_max_changed, choose_backend
from keras_bert_flow.preflight.models import check_model_directory
from keras_bert_flow.terminal import show


@app.command()
def export(
    model: Annotated[Path, typer.Argument(help="A model directory, ours or Hugging Face's.")],
    output: Annotated[Path, typer.Argument(help="New folder for the result.")],
    format: Annotated[str, typer.Option(help="onnx, saved_model or litert.")],
    int8: Annotated[
        bool, typer.Option("--int8", help="Store weights as int8 (onnx and litert): smaller and faster, less exact.")
    ] = False,
    max_changed: Annotated[
        float | None,
        typer.Option(
            help="Share of the predictions on the compared texts that --int8 may change; above it nothing is written. "
            f"Default: {MAX_CHANGED}."
        ),
    ] = None,
    asked_as: Annotated[
        str | None,
        typer.Option("--as", help="task (what it was fine-tuned for), fill_mask, features or sentence_embedding."),
    ] = None,
    strings: Annotated[
        bool, typer.Option("--strings", help="Let a SavedModel also take texts, with tensorflow-text.")
    ] = False,
    backend: Annotated[
        str | None,
        typer.Option(help="Backend that writes the file. Default: $KERAS_BACKEND if it can, else one that can."),
    ] = None,
) -> None:
    """Export a model to ONNX, SavedModel or LiteRT, reload it in its runtime and compare it with the original.

    The result also holds the files of the tokenizer, and export.json: inputs, outputs, labels, what was compared.
    """
    chosen = choose_backend(format, backend)
    check_max_changed(max_changed, int8)
    check_export(model, output, format, chosen, int8, asked_as, strings)
    check_model_directory(model)
    os.environ["KERAS_BACKEND"] = chosen
    with following(f"Export of {model} as {format} by {chosen}", output):
        from keras_bert_flow.export.export_model import export_model

        allowed = MAX_CHANGED if max_changed is None else max_changed
        done = export_model(model, output, format, int8, asked_as, strings, allowed)
    changed = ""
    if done.agreement is not None:
        how_many = f"{done.changed} of {done.predictions}" if done.changed else "none"
        changed = f", {how_many} of the predictions changed ({1 - done.agreement:.1%})"
    show(f"Written by {chosen}. {done.texts} texts compared: difference {done.largest_difference:.1e}{changed}.")
    show(output)
