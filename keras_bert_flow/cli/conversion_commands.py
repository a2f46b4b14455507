"""Commands that convert, export and publish models, and pack predictions for GLUE's server."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from keras_bert_flow.cli.application import app
from keras_bert_flow.cli.options import following
from keras_bert_flow.console.progress import working
from keras_bert_flow.console.terminal import show
from keras_bert_flow.conversion.directory import ModelDirectory, check_model_directory
from keras_bert_flow.export.request import MAX_CHANGED, check_export, check_max_changed, choose_backend
from keras_bert_flow.files.outputs import check_output_file, check_place, existing_output


@app.command()
def convert(
    source: Annotated[Path, typer.Argument(metavar="FROM", help="A model: a folder, or a checkpoint without .index.")],
    output: Annotated[Path, typer.Argument(metavar="TO", help="New folder for the result.")],
    target: Annotated[
        str | None,
        typer.Option(
            "--format", help="huggingface, tensorflow or kerashub. Default: huggingface, if that changes FROM."
        ),
    ] = None,
    source_format: Annotated[
        str | None, typer.Option("--from-format", help="Format of FROM. Default: inferred from its file names.")
    ] = None,
    base: Annotated[
        Path | None, typer.Option(help="Base model of an adapter. Default: the one that the adapter names.")
    ] = None,
    dtype: Annotated[str, typer.Option(help="float32, float16 or bfloat16 (rounded).")] = "float32",
    cased: Annotated[
        bool | None, typer.Option("--cased/--uncased", help="Whether the vocabulary is cased, if FROM does not say.")
    ] = None,
    positions: Annotated[
        int | None,
        typer.Option(help="Maximum sequence length of the result, in tokens; position embeddings are tiled."),
    ] = None,
    layers: Annotated[str | None, typer.Option(help="Layers to keep, such as 0,2,4; from 0.")] = None,
    vocab: Annotated[
        Path | None, typer.Option(help="New vocab.txt; embeddings of pieces that both vocabularies contain are kept.")
    ] = None,
    tied: Annotated[
        bool | None,
        typer.Option(
            "--tied/--untied", help="Tie the masked-LM output projection to the token embeddings, or untie it."
        ),
    ] = None,
    gelu: Annotated[str | None, typer.Option(help="GELU of the result, erf or tanh; this changes its outputs.")] = None,
    mlm_gelu: Annotated[str | None, typer.Option(help="GELU of the masked-LM head.")] = None,
    mlm_epsilon: Annotated[float | None, typer.Option(help="Epsilon of the layer norm in the masked-LM head.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Read and check everything, but write nothing.")] = False,
) -> None:
    """Convert a model to another format or shape, read it back and compare; report what was renamed and dropped.

    The formats: huggingface (config.json and safetensors), tensorflow (checkpoints of google-research/bert) and
    kerashub (presets of KerasHub, the successor of keras-nlp). A LoRA adapter is merged into its base model.
    """
    from keras_bert_flow.conversion.convert import HUGGING_FACE
    from keras_bert_flow.conversion.convert import convert as run
    from keras_bert_flow.conversion.formats.format import recognise
    from keras_bert_flow.results.publishing import verify

    check_place(output)
    if output.exists():
        raise existing_output(output)
    if source.is_dir():
        verify(source)
    name = source_format or recognise(source)
    changes: dict[str, Any] = {
        "positions": positions,
        "layers": _read_numbers(layers),
        "vocabulary": vocab,
        "tied": tied,
    }
    changes |= {"gelu": gelu, "mlm_gelu": mlm_gelu, "mlm_epsilon": mlm_epsilon}
    is_same = dtype == "float32" and all(change is None for change in changes.values())
    if target is None and name == HUGGING_FACE and is_same:
        raise ValueError(
            f"A conversion must change the model. Received: {source}, with neither --format nor --dtype. Give one."
        )
    with following(f"Conversion of {source}: reading, writing and reading back", output):
        done = run(source, output, target or HUGGING_FACE, name, dtype, cased, dry_run, base=base, **changes)
    show(f"{done.source} → {done.target}: {done.architecture}, {done.tensors} tensors, {done.parameters:,} parameters.")
    for remark in done.remarks:
        show(f"  {remark}")
    show("Nothing was written." if dry_run else output)


def _read_numbers(text: str | None) -> list[int] | None:
    """Parse comma-separated integers."""
    if text is None:
        return None
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise ValueError(f"Layers must be numbers with commas between. Received: --layers {text}.") from None


# The command that exports a model for serving.


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


# Commands that speak to the Hugging Face Hub.


@app.command()
def push(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Model directory.")],
    address: Annotated[str, typer.Argument(metavar="org/name", help="Repository; org/name@branch for a branch.")],
    license: Annotated[
        str | None,
        typer.Option(help="License identifier of the Hub, such as apache-2.0. Default: that of the model card."),
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="Create a private repository.")] = False,
    message: Annotated[str | None, typer.Option(help="Commit message.")] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Check everything locally, without a token or a network, but send nothing."),
    ] = False,
) -> None:
    """Push a model to the Hugging Face Hub in one commit; hf://org/name then refers to it everywhere."""
    from keras_bert_flow.stores.hub import CARD, check_push, list_model_files, push_to_hub, write_license

    name, branch = check_push(address, is_sent=not dry_run)
    directory = ModelDirectory(model)
    directory.verify()
    directory.opened.tensors.check_finite()
    write_license(model / CARD, license)
    for file in list_model_files(model):
        show(f"{file.relative_to(model)}, {file.stat().st_size:,} bytes")
    if dry_run:
        show(f"Nothing was sent to {name}@{branch}.")
    else:
        with working(f"Sending {model} to {name}@{branch}"):
            sent = push_to_hub(model, address, license, private, message)
        show(sent)


# Commands that gather predictions for those who score them.


@app.command("glue-zip")
def glue_zip(
    predictions: Annotated[
        list[Path],
        typer.Argument(
            help="Predictions of `kbf predict` on the test tables, named as in a submission: CoLA.jsonl or .tsv."
        ),
    ],
    output: Annotated[Path, typer.Option(help="The .zip file to write.")],
) -> None:
    """Collect predictions on GLUE's test tables into a .zip for its server, and report which are missing."""
    check_output_file(output, endings=[".zip"])
    from keras_bert_flow.results.publishing import verify
    from keras_bert_flow.tasks.formats.glue import write_glue_submission

    verify(*predictions)

    named = {f"{path.stem}.tsv": path for path in predictions}
    if len(named) < len(predictions):
        raise ValueError(
            f"Each table must be given once. Received: {', '.join(map(str, predictions))}. Leave out the others."
        )
    missing = write_glue_submission(output, named)
    show(output)
    if missing:
        show(f"Not whole: GLUE takes no submission without {', '.join(missing)}.")
