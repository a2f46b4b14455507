"""How long a command has run, and how much longer the stage that it is may take."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

RUN_BEGAN = "KBF_RUN_BEGAN"  # variable: when the run of a command began, seconds since 1970
STAGE_SECONDS = "KBF_STAGE_SECONDS"  # variable: most seconds of the stage that a command is
_command_began: float | None = None


@contextmanager
def timing_command() -> Iterator[None]:
    """Count the time of a command, within the block: the loading of Keras is part of it."""
    global _command_began
    before, _command_began = _command_began, time.monotonic()
    try:
        yield
    finally:
        _command_began = before


def command_seconds() -> float:
    """Return for how long the command has run; 0.0 in a program of a user's."""
    return 0.0 if _command_began is None else time.monotonic() - _command_began


def stage_seconds(minutes: float) -> float:
    """Return how much longer a stage may take that has so many minutes, fewer if the run that it is of says so."""
    allowed = float(os.environ.get(STAGE_SECONDS, "inf"))
    return min(60 * minutes, allowed) - command_seconds()
