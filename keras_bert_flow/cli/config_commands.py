"""Commands that list and copy the configurations that come with the project."""

import difflib
from pathlib import Path
from typing import Annotated

import typer

from keras_bert_flow.cli.application import Commands, app
from keras_bert_flow.cli.next_steps import say_next
from keras_bert_flow.outputs import check_place
from keras_bert_flow.own_packages import ROOT
from keras_bert_flow.terminal import show

IN_WHEEL = ROOT / "keras_bert_flow" / "configs"  # `configs/` of a checkout, put there by pyproject.toml
DEPLOYMENTS = "prefect"  # flows/prefect.yaml

configs = Commands(help="List and copy the configurations that come with the project.", no_args_is_help=True)
app.add_typer(configs, name="configs")


@configs.command("list")
def list_configs() -> None:
    """List the configurations: the name of each, and its first line."""
    files = find_configs()
    width = max(map(len, files))
    for name, path in files.items():
        first_line = path.read_text(encoding="utf-8").partition("\n")[0]
        show(f"{name:{width}}  {first_line.lstrip('# ')}")


@configs.command("copy")
def copy_config(
    name: Annotated[str, typer.Argument(help="A name that `kbf configs list` prints, such as tasks/cola.")],
    target: Annotated[
        Path | None, typer.Argument(help="New file, or a folder. Default: the same name in the working directory.")
    ] = None,
) -> None:
    """Copy a configuration, to be edited. Existing files are never overwritten."""
    files = find_configs()
    chosen = name.removeprefix("configs/").removesuffix(".yaml")
    if chosen not in files:
        near = difflib.get_close_matches(chosen, files, 1) or ["quickstart"]
        raise ValueError(
            f"A configuration must be one that `kbf configs list` prints. Received: {name}. "
            f"Try kbf configs copy {near[0]}"
        )
    source, target = files[chosen], target or Path()
    if target.is_dir():
        target /= source.name
    check_place(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with open(target, "xb") as file:
            file.write(source.read_bytes())
    except FileExistsError:
        raise ValueError(
            f"The copy must be a new file. Received: {target}, which exists. Choose another name."
        ) from None
    show(target)
    if chosen != DEPLOYMENTS and not chosen.startswith("tasks/"):  # which need a model
        say_next("run", target, "--plan")


def find_configs() -> dict[str, Path]:
    """Return the files of the configurations by name, without `.yaml`."""
    folder = IN_WHEEL if IN_WHEEL.is_dir() else ROOT / "configs"
    files = {path.relative_to(folder).with_suffix("").as_posix(): path for path in sorted(folder.rglob("*.yaml"))}
    return files | {DEPLOYMENTS: ROOT / "flows" / "prefect.yaml"}
