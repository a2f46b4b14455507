"""The `kbf` command: each stage of the pipeline alone, and all of them at once.

A command's file is imported when it is the one that runs, and imports what it needs when it runs: `kbf vocab` never
loads Keras, and a backend is chosen before Keras is imported. A user's mistake is one line and status 2; status 75
says that training stopped at a checkpoint.
"""

import importlib
import os
import signal
import sys
from collections.abc import Sequence

import typer

from keras_bert_flow.cli.application import explain
from keras_bert_flow.console import interrupts
from keras_bert_flow.console.interrupts import handling_signals, leave, leave_at_once, timing_command
from keras_bert_flow.installed import check_packages, child_environment

# file of this room → its commands, in the order in which the help lists them
COMMANDS = {
    "data_commands": ("init", "corpus", "vocab", "records", "doctor", "inspect"),
    "run_commands": ("configs", "run"),
    "tune_commands": ("tune",),
    "serve_commands": ("serve", "serve-model"),
    "model_commands": ("pretrain", "distill", "augment", "finetune", "evaluate", "report"),
    "question_commands": ("predict", "search"),
    "store_commands": ("runs", "lineage"),
    "conversion_commands": ("convert", "export", "push", "glue-zip"),
}


def main() -> None:
    """Run `kbf`, turning a user's mistake into one line, and a signal into one line and its status."""
    with handling_signals():
        os.environ.update(child_environment())  # for Beam's workers and other processes that libraries start
        try:
            try:
                os.getcwd()  # libraries read it when they are imported
            except FileNotFoundError:
                raise FileNotFoundError(
                    "The working directory must exist. Received: one that was removed. Change to another with cd."
                ) from None
            check_packages()
            app = load_commands(sys.argv[1:])
            with timing_command():
                status = app(standalone_mode=False)  # typer turns Ctrl-C into a status, and other versions into Abort
        except typer.Abort:
            status = interrupts.INTERRUPTED
        except Exception as error:
            if os.environ.get("KBF_DEBUG"):
                raise
            status = explain(error)
        if status == interrupts.INTERRUPTED:  # by KeyboardInterrupt, where a library has put back Python's own handler
            leave(signal.SIGINT, None)
        if status == interrupts.PROCESS_LOST:
            leave_at_once(status)
        if status:
            sys.exit(status)


def load_commands(arguments: Sequence[str]) -> typer.Typer:
    """Return the application with the module of the named command loaded, or all modules if none is named."""
    from keras_bert_flow.cli import application

    named = next((argument for argument in arguments if not argument.startswith("-")), None)
    chosen = [file for file, commands in COMMANDS.items() if named in commands]
    for file in chosen or COMMANDS:
        importlib.import_module(f"{__name__}.{file}")
    return application.app


def __getattr__(name: str) -> typer.Typer:
    """Load all commands when `app` is imported, as completion and tests do."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return load_commands(())
