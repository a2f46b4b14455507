"""Turn a user's mistake into one line and a status."""

import sys

from keras_bert_flow import exit_status
from keras_bert_flow.extras import EXTRAS
from keras_bert_flow.os_errors import explain_os_error
from keras_bert_flow.terminal import escape_controls, hide_credentials, show


def explain(error: Exception) -> int:
    """Print what went wrong on one line and return the exit status; what no user can cause is raised."""
    message = " ".join(str(error).split())
    if type(error).__name__ == "Interrupted":  # its module would import Keras
        status = exit_status.CHECKPOINTED
    elif type(error).__name__ == "LostProcess":
        status = exit_status.PROCESS_LOST
    elif isinstance(error, ModuleNotFoundError):
        status, package = exit_status.USER_ERROR, (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise error
        message = f"This needs {package}, which is not installed. pip install 'keras-bert-flow[{EXTRAS[package]}]'"
    elif hasattr(error, "format_message"):  # typer's own, of a wrong option
        status, message = exit_status.USER_ERROR, error.format_message().rstrip(".")
        if not message:  # no command was given: the help says it all
            return status
        message += " See --help." if message.endswith("?") else ". See --help."
    elif isinstance(error, ChildProcessError):  # a worker process was killed: run again
        status = exit_status.FAILED
    elif isinstance(error, OSError):
        status, message = exit_status.USER_ERROR, explain_os_error(error)
    elif isinstance(error, MemoryError):
        status = exit_status.USER_ERROR
        reason = f" ({message})" if message else ""
        message = (
            f"The work must fit in memory. Received: an allocation that failed{reason}. Make batches or inputs smaller."
        )
    elif isinstance(error, ValueError):
        status = exit_status.USER_ERROR
    elif type(error).__name__ == "StageError":
        status = exit_status.FAILED
    else:
        raise error
    show(f"kbf: {escape_controls(hide_credentials(message))}", sys.stderr)
    return status
