"""Log a run to one tracking server: `python -m keras_bert_flow.tracking mlflow`, started by the training.

The first line of standard input describes the run, and the second how it ended. If the input ends without the second,
the training was killed. At most one warning is printed, on standard error.
"""

import json
import os
import select
import signal
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from keras_bert_flow.by_name import Registry
from keras_bert_flow.console.interrupts import REPORTED
from keras_bert_flow.console.terminal import abridge, escape_controls, hide_credentials
from keras_bert_flow.results.artifacts import locked
from keras_bert_flow.tracking.logger import FINISHED, STOPPED, End, Logger, RunFacts, follow

LOGGERS: Registry[type[Logger]] = Registry(
    "A logger",
    {
        "mlflow": "keras_bert_flow.tracking.mlflow_run:MlflowRun",
        "wandb": "keras_bert_flow.tracking.wandb_run:WandbRun",
    },
)
TITLES = {"mlflow": "MLflow", "wandb": "Weights & Biases"}
# How long the training waits for the logger after its end; and if it was stopped or the server has already failed.
END_SECONDS, HURRIED_SECONDS = 30.0, 5.0
# By default MLflow waits many minutes for a server that is down.
PATIENCE = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "20", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2"}


@dataclass
class Messages:
    """Line reader for a pipe; the buffer of an ordinary reader could hide a line from `select`."""

    descriptor: int
    _read: bytes = b""

    def read_line(self, seconds: float | None = None) -> bytes | None:
        """Return a line; b"" at the end of the pipe, None after a timeout of `seconds`."""
        while b"\n" not in self._read:
            if not select.select([self.descriptor], [], [], seconds)[0]:
                return None
            more = os.read(self.descriptor, 1 << 16)
            if not more:
                return b""
            self._read += more
        line, _, self._read = self._read.partition(b"\n")
        return line


def main(name: str) -> None:
    for number in (
        signal.SIGINT,
        signal.SIGTERM,
        signal.SIGHUP,
    ):  # meant for the training, whose end also ends this process
        signal.signal(number, signal.SIG_IGN)
    messages = Messages(sys.stdin.fileno())
    given = json.loads(messages.read_line() or b"")
    facts = RunFacts(**given | {path: Path(given[path]) for path in ("log", "state")})
    warnings = os.fdopen(os.dup(2), "w", encoding="utf-8", errors="replace")
    for descriptor in (1, 2):  # silences output of the packages
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
    for variable, value in PATIENCE.items():
        os.environ.setdefault(variable, value)
    has_warned = threading.Event()

    def warn(message: str) -> None:
        if not has_warned.is_set():
            has_warned.set()
            said = escape_controls(abridge(hide_credentials(" ".join(message.split()))))
            with suppress(OSError):
                print(
                    f"{TITLES[name]} must be reached for its log of {facts.name}. Received: {said}. The training goes "
                    "on; log.jsonl has every number.",
                    file=warnings,
                    flush=True,
                )

    def give_up() -> None:
        warn("no answer by the end of the training")
        os._exit(REPORTED)

    def wait(seconds: float) -> End | None:
        line = messages.read_line(seconds)
        if line is None:
            return None
        end = End(**json.loads(line)) if line else End(STOPPED, {})
        is_hurried = has_warned.is_set() or end.status != FINISHED
        timer = threading.Timer(HURRIED_SECONDS if is_hurried else END_SECONDS, give_up)
        timer.daemon = True
        timer.start()
        return end

    try:
        make_logger = LOGGERS.find(name)
    except Exception as error:
        warn(f"{type(error).__name__}: {error}")
        sys.exit(REPORTED)
    # The logger of a killed training may still be running when the training is resumed.
    with locked(facts.state / f".{name}.lock", tell=lambda line: None):
        is_done = follow(make_logger, facts, wait, warn)
    sys.exit(0 if is_done else REPORTED)


if __name__ == "__main__":
    main(sys.argv[1])
