"""Commands without standard streams, working directory or home: one line at most, and a status that tells."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from keras_bert_flow.stores.fetching import cache_root
from tests.patience import PATIENCE_SECONDS

KBF = [sys.executable, "-m", "keras_bert_flow"]
LOST = "kbf: Standard output must be open. Received: none, so what was printed is lost. Add >/dev/null\n"


def run_closed(closed: str, *arguments: object) -> tuple[int, str, str]:
    """Run a command in a shell with streams closed, as `>&-` does."""
    line = f'"$@" {closed}'
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(
        ["sh", "-c", line, "sh", *KBF, *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("closed", "arguments", "expected"),
    [
        (">&-", ("--version",), (2, "", LOST)),
        (">&- <&-", ("configs", "list"), (2, "", LOST)),
        (">&- 2>&- <&-", ("configs", "list"), (2, "", "")),
        ("2>&-", ("runs", "list", "none"), (2, "", "")),
    ],
)
def test_closed_streams_are_told_by_the_status(closed, arguments, expected):
    assert run_closed(closed, *arguments) == expected


def test_files_get_no_number_of_a_closed_stream(tmp_path):
    status, _, error = run_closed(">&- <&-", "configs", "copy", "quickstart", tmp_path / "q.yaml")
    assert (status, error) in ((0, ""), (2, LOST))
    assert (tmp_path / "q.yaml").read_text().lstrip().startswith("#")


def test_removed_working_directory_is_refused_in_one_line(tmp_path):
    script = 'cd "$1" && rmdir "$1" && shift && exec "$@"'
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    command = ["sh", "-c", script, "sh", str(tmp_path), *KBF, "configs", "list"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    said = "kbf: The working directory must exist. Received: one that was removed. Change to another with cd.\n"
    assert (done.returncode, done.stderr) == (2, said)


def test_cache_without_a_home_names_the_variable(monkeypatch):
    for name in ("HOME", "KBF_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_000)  # a user whom the system does not know
    with pytest.raises(ValueError, match="Set KBF_CACHE to one"):
        cache_root()
