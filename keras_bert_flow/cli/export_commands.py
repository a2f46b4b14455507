"""The command that exports a model for serving."""

import os
from pathlib import Path
from typing import Annotated

import typer

from keras_bert_flow.cli.application import app
from keras_bert_flow.cli.work_measure import following
from keras_bert_flow.export.request import check_export, choose_backend
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
    check_export(model, output, format, chosen, int8, asked_as, strings)
    check_model_directory(model)
    os.environ["KERAS_BACKEND"] = chosen
    with following(f"Export of {model} as {format} by {chosen}", output):
        from keras_bert_flow.export.export_model import export_model

        done = export_model(model, output, format, int8, asked_as, strings)
    agreement = "" if done.agreement is None else f", {done.agreement:.1%} of the predictions the same"
    show(f"Written by {chosen}. {done.texts} texts compared: difference {done.largest_difference:.1e}{agreement}.")
    show(output)
