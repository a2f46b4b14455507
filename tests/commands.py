"""Run `kbf` in a process of its own, and say what a refusal by it looks like."""

import os
import subprocess
import sys
from pathlib import Path

from tests.forks import ROOT, can_fork, run_forked
from tests.patience import PATIENCE_SECONDS
from tests.strangers import folder_for_commands


def kbf(*arguments: str | Path, environment: dict[str, str] | None = None, timeout: int = PATIENCE_SECONDS):
    """Run the command in a process of its own, among modules of a user's that have the names of ours.

    Returns:
        (status, standard output, standard error).
    """
    here = {"KERAS_BACKEND": "torch", "PYTHONPATH": str(ROOT)}
    variables = os.environ | here | (environment or {})
    if can_fork(variables):
        return run_forked([*map(str, arguments)], variables, folder_for_commands(), timeout)
    command = [sys.executable, "-m", "keras_bert_flow", *map(str, arguments)]
    done = subprocess.run(
        command, cwd=folder_for_commands(), env=variables, capture_output=True, text=True, timeout=timeout, check=False
    )
    return done.returncode, done.stdout, done.stderr


def assert_refused(done: tuple[int, str, str], *words: str) -> None:
    status, _, error = done
    lines = [line for line in error.splitlines() if line.strip()]
    assert status == 2, error
    assert len(lines) == 1, error
    assert lines[0].startswith("kbf: ")
    for word in words:
        assert word in lines[0]
