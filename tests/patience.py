"""How long tests wait for what should come at once: ten times what it takes on two busy cores."""

import time
from collections.abc import Callable

PATIENCE_SECONDS = 600


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)
