"""Code that runs as users without privileges: no permission holds against root, as whom tests may run."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ANNE, BERT = 12345, 23456  # user ids, each with a group of the same number
TEAM = 34567  # a group of both
_BECOME = """
import os, sys
_user, _umask = int(sys.argv[1]), int(sys.argv[2], 8)
del sys.argv[1:3]
def become():
    os.umask(_umask)
    os.setgroups([{team}])
    os.setresgid(_user, _user, _user)
    os.setresuid(_user, _user, _user)
"""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become other users")


def start_as(user: int, code: str, *arguments: object, umask: str = "022") -> subprocess.Popen:
    """Start Python code whose `become()` makes it that of a user; its output is text in pipes.

    It imports what it needs before that, since Python and the checkout may be out of the user's reach.
    """
    command = [sys.executable, "-c", _BECOME.format(team=TEAM) + code, str(user), umask, *map(str, arguments)]
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(
        command, cwd=Path(__file__).parents[1], env=os.environ | {"HOME": "/"}, text=True, **streams
    )


@pytest.fixture
def common() -> Iterator[Path]:
    """A folder that every user reaches, unlike pytest's."""
    with tempfile.TemporaryDirectory(prefix="kbf-test-") as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)
