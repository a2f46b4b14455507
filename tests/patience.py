"""How long tests wait for what should come at once: ten times what it takes on two busy cores."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

PATIENCE_SECONDS = 600


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


def read_port(file: Path, server: subprocess.Popen) -> str:
    """Return the port that a server writes to a file when it listens."""
    wait_until(lambda: file.exists() or server.poll() is not None)
    return file.read_text()
