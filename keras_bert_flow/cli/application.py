"""The Typer application of `kbf`: its global options, the paths of every command, and one-line messages of errors."""

import logging
import os
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer
from typer.models import OptionInfo

from keras_bert_flow.console import interrupts
from keras_bert_flow.console.terminal import EscapingFormatter, escape_controls, hide_credentials, show
from keras_bert_flow.files.outputs import check_apart, explain_os_error
from keras_bert_flow.files.paths import check_local, find_address, is_configuration
from keras_bert_flow.installed import EXTRAS, describe_versions
from keras_bert_flow.results.publishing import holding_inputs


class Commands(typer.Typer):
    """Typer application that checks and fetches the paths of a command before it begins."""

    def command(  # type: ignore[override]  # which takes what Typer's takes
        self, *arguments: Any, **options: Any
    ) -> Callable[[Callable], Callable]:
        register = super().command(*arguments, **options)

        def add(function: Callable) -> Callable:
            register(with_resolved_paths(function))
            return function

        return add


def with_resolved_paths(function: Callable) -> Callable:
    """Wrap a command: its options of type `Path` are checked and fetched first. Corpus patterns are strings."""
    options = {}  # name of each parameter → the flag of an option, or the name of an argument
    for name, kind in get_type_hints(function, include_extras=True).items():
        option = next((told for told in get_args(kind) if isinstance(told, OptionInfo)), None)
        flags = (option.param_decls or (f"--{name.replace('_', '-')}",)) if option else (name,)
        options[name] = max(flags, key=len)

    @wraps(function)
    def resolved(**values: Any) -> Any:
        with holding_inputs():
            return function(**resolve_paths(values, options))

    return resolved


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


# Check the paths that a command is given before it begins, and fetch the remote ones.

# What each command calls by these names may be at another place, such as s3://bucket/x.
MODELS = ("model", "teacher", "initial_model", "base")
FILES = ("input", "predictions", "minimal_pairs", "lines")
OUTPUTS = ("output", "index", "target")  # what a command writes; every other path is read
PATTERNS = ("input", "imported", "held_out", "text")  # names of text and records, which may be globs
ANYWHERE = ("records", "vocab", "finetuned", "pretrained", "earlier", "source", *FILES, *MODELS)


def resolve_paths(values: Mapping[str, Any], options: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of a command's options: remote inputs fetched to this disk, a configuration's newest model.

    Records may still be on their way; see `stores.fetching`.

    Args:
        values: name of each parameter → its value.
        options: name of each parameter → the option as a user gives it.
    Raises:
        ValueError: a path is at another place and must not be, or is a folder around models and not one, or is to be
            written and read.
        FileNotFoundError, OSError: of `stores.fetching.fetch`.
    """
    listed = {name: value if isinstance(value, list | tuple) else (value,) for name, value in values.items()}
    paths = [(name, path) for name, given in listed.items() for path in given if isinstance(path, Path)]
    for name, path in paths:
        if name not in ANYWHERE:
            check_local(path, options[name])
    _check_apart(values, [path for name, path in paths if name not in OUTPUTS and not find_address(path)])
    resolved = dict(values)
    for name, path in paths:
        if name in ANYWHERE and find_address(path):
            from keras_bert_flow.stores.fetching import fetch

            fetched = fetch(path, wait=name != "records")
            given = resolved[name]
            is_list = isinstance(given, list | tuple)
            resolved[name] = [fetched if one == path else one for one in given] if is_list else fetched
        if name in MODELS:
            if is_configuration(resolved[name]):
                from keras_bert_flow.results.choosing import find_model

                resolved[name] = find_model(resolved[name])
            _check_model(resolved[name])
    return resolved


def _check_apart(values: Mapping[str, Any], read: Sequence[Path]) -> None:
    """Raise ValueError if an output of a command would replace one of its inputs, standard streams included."""
    patterns = [path for name in PATTERNS if isinstance(given := values.get(name), list) for path in given]
    inputs = [*read, *(path for path in patterns if not find_address(path))]
    for name in OUTPUTS:
        output = values.get(name)
        # The output of some commands may be elsewhere and is text; the `target` of one is no path, but a format.
        if not (isinstance(output, Path) or (name == "output" and output)) or find_address(output):
            continue
        check_apart(output, inputs)
        if _is_open(0, Path(output)):
            raise ValueError(
                f"The output must not replace what is read. Received: {output}, which is standard input. Choose "
                "another path."
            )
    for path in map(Path, inputs):
        if _is_open(1, path):
            raise ValueError(
                f"The output must not go into what is read. Received: {path}, which is standard output. Choose another "
                "file."
            )


def _is_open(descriptor: int, path: Path) -> bool:
    """Return whether a descriptor is open on a regular file."""
    try:
        status = os.fstat(descriptor)
        return stat.S_ISREG(status.st_mode) and os.path.samestat(status, path.stat())
    except OSError:
        return False


def _check_model(folder: Path) -> None:
    """Check that a path is a model directory rather than a folder that contains some.

    Raises:
        ValueError: it is what `kbf pretrain` or `kbf finetune` made; the message names a model in it.
    """
    if (folder / "config.json").is_file():
        return
    for pattern in ("model", "pretrained/seed-*/model"):
        for inner in sorted(folder.glob(f"{pattern}/config.json")):
            raise ValueError(f"A model directory must hold config.json. Received: {folder}. Try {inner.parent}")


# Turn a user's mistake into one line and a status.


def explain(error: Exception) -> int:
    """Print a user's error in one line and return the exit status; raise any other error."""
    message = " ".join(str(error).split())
    # By name: a process without Keras must not load it to say what went wrong.
    if type(error).__name__ == "Interrupted":
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
