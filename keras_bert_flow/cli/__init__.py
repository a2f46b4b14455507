"""The `kbf` command: every step of the walk alone, and all of them at once.

Each command imports what it needs when it runs: `kbf vocab` never loads Keras, and a backend is chosen before Keras is
imported. A user's mistake is one line and status 2; status 75 says that training stopped at a checkpoint.
"""

import os
import signal
import sys

import typer

from keras_bert_flow import exit_status
from keras_bert_flow.cli import (  # noqa: F401  each adds its commands
    config_commands,
    conversion_commands,
    data_commands,
    export_commands,
    hub_commands,
    model_commands,
    question_commands,
    serve_commands,
    submission_commands,
)
from keras_bert_flow.cli.app import app
from keras_bert_flow.cli.mistakes import explain
from keras_bert_flow.interrupts import handling_signals, leave
from keras_bert_flow.own_packages import check_packages, child_environment


def main() -> None:
    """Run `kbf`, turning a user's mistake into one line, and a signal into one line and its status."""
    with handling_signals():
        _run()


def _run() -> None:
    os.environ.update(child_environment())  # for Beam's workers and other processes that libraries start
    try:
        check_packages()
        status = app(standalone_mode=False)  # typer turns Ctrl-C into a status, and other versions into Abort
    except typer.Abort:
        status = exit_status.INTERRUPTED
    except Exception as error:
        if os.environ.get("KBF_DEBUG"):
            raise
        status = explain(error)
    if status == exit_status.INTERRUPTED:  # by KeyboardInterrupt, where a library has put back Python's own handler
        leave(signal.SIGINT, None)
    if status:
        sys.exit(status)
