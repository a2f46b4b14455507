"""Commands that turn models of one format into those of another."""

from pathlib import Path
from typing import Annotated, Any

import typer

from keras_bert_flow.cli.application import app
from keras_bert_flow.cli.work_measure import following
from keras_bert_flow.outputs import check_place, existing_output
from keras_bert_flow.terminal import show


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
    from keras_bert_flow.conversion.formats.registry import recognise
    from keras_bert_flow.records.verification import verify

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
    """Read numbers with commas between them."""
    if text is None:
        return None
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise ValueError(f"Layers must be numbers with commas between. Received: --layers {text}.") from None
