"""Escape the log messages of runs, which quote names: Prefect prints them on terminals and shows them in its UI."""

import logging

from keras_bert_flow.terminal import JOINERS, escape_controls

RUN_LOGGERS = ("prefect.flow_runs", "prefect.task_runs")
_KEPT = "\n\t" + JOINERS  # Prefect's own messages have several lines


def escape_run_logs() -> None:
    """Escape the messages and tracebacks of flow and task runs before they reach any handler."""
    for name in RUN_LOGGERS:
        logging.getLogger(name).addFilter(_escape)


def _escape(record: logging.LogRecord) -> bool:
    record.msg, record.args = escape_controls(record.getMessage(), _KEPT), ()
    if record.exc_info:
        record.exc_text = escape_controls(logging.Formatter().formatException(record.exc_info), _KEPT)
    return True
