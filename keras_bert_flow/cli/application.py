"""Make the `kbf` command, to which the files of this room add theirs."""

import logging
import os
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, get_args, get_type_hints

import typer
from typer.models import OptionInfo

from keras_bert_flow.cli.inputs import settle_paths
from keras_bert_flow.leases import holding_inputs
from keras_bert_flow.terminal import EscapingFormatter, show
from keras_bert_flow.versions import describe_versions


class Commands(typer.Typer):
    """An application whose commands have their paths looked at before they begin."""

    def command(  # type: ignore[override]  # which takes what Typer's takes
        self, *arguments: Any, **options: Any
    ) -> Callable[[Callable], Callable]:
        register = super().command(*arguments, **options)

        def add(function: Callable) -> Callable:
            register(settling(function))
            return function

        return add


def settling(function: Callable) -> Callable:
    """Return a command whose paths are looked at before it begins; the text of a corpus is not given as a `Path`."""
    options = {name: _name_option(name, kind) for name, kind in get_type_hints(function, include_extras=True).items()}

    @wraps(function)
    def settled(**values: Any) -> Any:
        with holding_inputs():
            return function(**settle_paths(values, options))

    return settled


def _name_option(name: str, kind: Any) -> str:
    """Return an option as a user gives it, and an argument by its name."""
    for told in get_args(kind):
        if isinstance(told, OptionInfo):
            return max(told.param_decls or (f"--{name.replace('_', '-')}",), key=len)
    return name


app = Commands(
    name="kbf",
    help="From raw text to an evaluated BERT, on whichever Keras backend you run.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def show_versions(is_asked: bool) -> None:
    """Print the versions and end the command, where they are asked for beside other options."""
    if is_asked:
        show(describe_versions(), keep="\n")
        raise typer.Exit


@app.callback()
def set_up(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the versions of this, Keras and its backends.", callback=show_versions),
    ] = False,
) -> None:
    """From raw text to an evaluated BERT, on whichever Keras backend you run."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # TensorFlow's remarks on the machine
    handler = logging.StreamHandler()
    handler.setFormatter(EscapingFormatter("%(message)s"))
    logging.basicConfig(level=logging.ERROR, handlers=[handler])  # Beam's remarks go to the root logger
    logging.getLogger("keras_bert_flow").setLevel(logging.WARNING)
    if debug:
        os.environ["KBF_DEBUG"] = "1"
