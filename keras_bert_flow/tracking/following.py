"""Follow the log of a run to its end, and pass each line to a logger once, even if its server fails meanwhile."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from keras_bert_flow.tracking.log_tail import LogTail
from keras_bert_flow.tracking.logger import Logger, RunFacts

POLL_SECONDS = 1.0
RETRY_SECONDS = 30.0


@dataclass(frozen=True)
class End:
    """How a run ended: its status, and the metrics of the published model."""

    status: str
    metrics: Mapping[str, Any]


def follow(
    make_logger: Callable[[], Logger],
    facts: RunFacts,
    wait: Callable[[float], End | None],
    warn: Callable[[str], None],
) -> bool:
    """Log until the run has ended; return whether everything was logged.

    Lines up to the last step on the server are left out, since a run resumed from a checkpoint writes them again.

    Args:
        make_logger: called again after a failure.
        wait: waits the given number of seconds for the end of the run; returns it, or None if the run goes on.
        warn: called with the first error.
    """
    tail, waiting = LogTail(facts.log), []
    logger: Logger | None = None
    last_step, pause, end = -1, 0.0, None
    has_failed = False
    while end is None:
        end = wait(pause)
        waiting += tail.read()
        try:
            if logger is None:
                opened = make_logger()
                last_step = opened.open(facts)
                logger = opened
                waiting += tail.read()  # opening takes seconds
            if lines := [line for line in waiting if line["step"] > last_step]:
                logger.log(lines)
                last_step = lines[-1]["step"]
            waiting.clear()
            if end is not None:
                logger.close(end.status, end.metrics)
            pause = POLL_SECONDS
        except Exception as error:
            if not has_failed:
                warn(f"{type(error).__name__}: {error}")
            has_failed, pause = True, RETRY_SECONDS
            if end is not None:
                return False
            logger = None  # reopening queries the last step on the server
    return True
