"""The command that keeps Prefect's server, UI and worker on this machine."""

import importlib.util
import os
import signal
from pathlib import Path
from typing import Annotated

import typer

from keras_bert_flow.cli.application import app
from keras_bert_flow.cli.config_commands import find_configs
from keras_bert_flow.interrupts import UNATTENDED, ending_with
from keras_bert_flow.terminal import show

STOPPED = "kbf: stopped; `kbf serve` goes on with the same runs.\n"


@app.command()
def serve(
    configs: Annotated[
        list[Path] | None, typer.Argument(help="Configuration files, one form per file. Default: the quickstart's.")
    ] = None,
    port: Annotated[
        int, typer.Option(min=1, max=65434, help="Port of Prefect's server and UI; reports are served at the next one.")
    ] = 4200,
    parallel: Annotated[int, typer.Option(min=1, help="Maximum number of concurrent runs.")] = 1,
) -> None:
    """Run Prefect's server, its UI and a worker on this machine until Ctrl-C, with one form per configuration."""
    if importlib.util.find_spec("prefect") is None:
        raise ValueError("`kbf serve` needs Prefect. Received: none installed. pip install 'keras-bert-flow[flows]'")
    from flows.server import find_home
    from flows.serving import serve as serve_here

    files = [os.path.relpath(path) for path in configs or (find_configs()["quickstart"],)]
    home = find_home()
    with ending_with((signal.SIGINT, *UNATTENDED), 0, STOPPED):
        serve_here(files, home, port, parallel, show)
