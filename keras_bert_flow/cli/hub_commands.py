"""Commands that speak to the Hugging Face Hub."""

from pathlib import Path
from typing import Annotated

import typer

from keras_bert_flow.cli.application import app
from keras_bert_flow.progress import working
from keras_bert_flow.records.verification import verify
from keras_bert_flow.terminal import show


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
    from keras_bert_flow.conversion.directory_check import open_directory
    from keras_bert_flow.stores.hub_upload import CARD, check_push, list_model_files, push_to_hub, write_license

    name, branch = check_push(address, is_sent=not dry_run)
    verify(model)
    open_directory(model)[1].check_finite()
    write_license(model / CARD, license)
    for file in list_model_files(model):
        show(f"{file.relative_to(model)}, {file.stat().st_size:,} bytes")
    if dry_run:
        show(f"Nothing was sent to {name}@{branch}.")
    else:
        with working(f"Sending {model} to {name}@{branch}"):
            sent = push_to_hub(model, address, license, private, message)
        show(sent)
