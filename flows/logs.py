"""Escape the log messages of runs, which quote names and addresses: Prefect prints them on terminals and keeps them."""

import logging

from keras_bert_flow.terminal import JOINERS, escape_controls, hide_credentials

RUN_LOGGERS = ("prefect.flow_runs", "prefect.task_runs")
_KEPT = "\n\t" + JOINERS  # Prefect's own messages have several lines


def escape_run_logs() -> None:
    """Escape the messages and tracebacks of flow and task runs, without credentials, before they reach any handler.

    An error that the user can fix is its line alone, unless the level of Prefect's logs is DEBUG: a traceback of 30
    lines, which Prefect prints twice, would hide it.
    """
    for name in RUN_LOGGERS:
        logging.getLogger(name).addFilter(_escape)


def _escape(record: logging.LogRecord) -> bool:
    record.msg, record.args = escape_controls(hide_credentials(record.getMessage()), _KEPT), ()
    is_mistake = record.exc_info is not None and isinstance(record.exc_info[1], (ValueError, OSError))
    if is_mistake and not logging.getLogger(record.name).isEnabledFor(logging.DEBUG):
        record.exc_info = record.exc_text = None
    elif record.exc_info:
        text = hide_credentials(logging.Formatter().formatException(record.exc_info))
        record.exc_text = escape_controls(text, _KEPT)
    return True
