"""Make the `kbf` command, to which the files of this room add theirs."""

import logging
import os
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from keras_bert_flow.cli.inputs import settle_paths
from keras_bert_flow.terminal import EscapingFormatter


class PathCommand(TyperCommand):
    """A command whose paths are looked at before it begins; the text of a corpus is not given as a `Path`."""

    def invoke(self, ctx: typer.Context) -> Any:
        options = {parameter.name: max(parameter.opts, key=len) for parameter in self.params}
        ctx.params = settle_paths(ctx.params, options)
        return super().invoke(ctx)


class Commands(typer.Typer):
    """An application whose commands are all of one class."""

    def command(self, *arguments: Any, cls: type[TyperCommand] = PathCommand, **options: Any) -> Callable:
        return super().command(*arguments, cls=cls, **options)


app = Commands(
    name="kbf",
    help="From raw text to an evaluated BERT, on whichever Keras backend you run.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def set_up(debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False) -> None:
    """From raw text to an evaluated BERT, on whichever Keras backend you run."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # TensorFlow's remarks on the machine
    handler = logging.StreamHandler()
    handler.setFormatter(EscapingFormatter("%(message)s"))
    logging.basicConfig(level=logging.ERROR, handlers=[handler])  # Beam's remarks go to the root logger
    logging.getLogger("keras_bert_flow").setLevel(logging.WARNING)
    if debug:
        os.environ["KBF_DEBUG"] = "1"
