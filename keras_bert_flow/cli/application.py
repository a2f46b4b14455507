"""The Typer application of `kbf`, its global options, and the one-line messages of its errors."""

import logging
import os
import sys
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, get_args, get_type_hints

import typer
from typer.models import OptionInfo

from keras_bert_flow.cli.inputs import settle_paths
from keras_bert_flow.console import interrupts
from keras_bert_flow.console.terminal import EscapingFormatter, escape_controls, hide_credentials, show
from keras_bert_flow.files.outputs import explain_os_error
from keras_bert_flow.installed import EXTRAS, describe_versions
from keras_bert_flow.results.publishing import holding_inputs


class Commands(typer.Typer):
    """Typer application that checks and fetches the paths of a command before it begins."""

    def command(  # type: ignore[override]  # which takes what Typer's takes
        self, *arguments: Any, **options: Any
    ) -> Callable[[Callable], Callable]:
        register = super().command(*arguments, **options)

        def add(function: Callable) -> Callable:
            register(settling(function))
            return function

        return add


def settling(function: Callable) -> Callable:
    """Wrap a command: its options of type `Path` are checked and fetched first. Corpus patterns are strings."""
    options = {name: _name_option(name, kind) for name, kind in get_type_hints(function, include_extras=True).items()}

    @wraps(function)
    def settled(**values: Any) -> Any:
        with holding_inputs():
            return function(**settle_paths(values, options))

    return settled


def _name_option(name: str, kind: Any) -> str:
    """Return the flag of an option, or the name of an argument, for messages."""
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
    """Callback of `--version`: print the versions and exit, whatever else is given."""
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


# Turn a user's mistake into one line and a status.


def explain(error: Exception) -> int:
    """Print a user's error in one line and return the exit status; raise any other error."""
    message = " ".join(str(error).split())
    if type(error).__name__ == "Interrupted":  # its module would import Keras
        status = interrupts.CHECKPOINTED
    elif type(error).__name__ == "LostProcess":
        status = interrupts.PROCESS_LOST
    elif isinstance(error, ModuleNotFoundError):
        status, package = interrupts.USER_ERROR, (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise error
        message = f"This needs {package}, which is not installed. pip install 'keras-bert-flow[{EXTRAS[package]}]'"
    elif hasattr(error, "format_message"):  # typer's own, of a wrong option
        status, message = interrupts.USER_ERROR, error.format_message().rstrip(".")
        if not message:  # no command was given: the help says it all
            return status
        message += " See --help." if message.endswith("?") else ". See --help."
    elif isinstance(error, ChildProcessError):  # a worker process was killed: run again
        status = interrupts.FAILED
    elif isinstance(error, OSError):
        status, message = interrupts.USER_ERROR, explain_os_error(error)
    elif isinstance(error, MemoryError):
        status = interrupts.USER_ERROR
        reason = f" ({message})" if message else ""
        message = (
            f"The work must fit in memory. Received: an allocation that failed{reason}. Make batches or inputs smaller."
        )
    elif isinstance(error, ValueError):
        status = interrupts.USER_ERROR
    elif type(error).__name__ == "StageError":
        status = interrupts.FAILED
    else:
        raise error
    show(f"kbf: {escape_controls(hide_credentials(message))}", sys.stderr)
    return status
