"""Make the `kbf` command, to which the files of this room add theirs."""

import logging
import os
from typing import Annotated

import typer

app = typer.Typer(
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
    logging.basicConfig(level=logging.ERROR, format="%(message)s")  # Beam's remarks go to the root logger
    logging.getLogger("keras_bert_flow").setLevel(logging.WARNING)
    if debug:
        os.environ["KBF_DEBUG"] = "1"
