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
_DROP = """
import os, sys
import keras_bert_flow.artifacts  # before the checkout may be out of reach
user, umask = int(sys.argv[1]), int(sys.argv[2], 8)
del sys.argv[1:3]
os.umask(umask)
os.setgroups([{team}])
os.setresgid(user, user, user)
os.setresuid(user, user, user)
"""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become other users")


def start_as(user: int, code: str, *arguments: object, umask: str = "022") -> subprocess.Popen:
    """Start Python code as a user, whose arguments begin at `sys.argv[1]`; its output is text in pipes."""
    command = [sys.executable, "-c", _DROP.format(team=TEAM) + code, str(user), umask, *map(str, arguments)]
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
