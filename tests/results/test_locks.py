import logging
import os
import socket
import subprocess
import sys
import threading

import pytest

from keras_bert_flow.results.artifacts import RUN_NAME, find_holder, locked, publishing
from tests.patience import PATIENCE_SECONDS

PUBLISH = """
import sys
from keras_bert_flow.results.artifacts import publishing
with publishing(sys.argv[1]):
    print("has it", flush=True)
    sys.stdin.readline()
"""


def start_holder(path):
    command = [sys.executable, "-c", PUBLISH, str(path), "--flag", "two words"]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "has it\n"
    return holder


def test_waiting_run_says_once_for_whom(tmp_path):
    holder = start_holder(tmp_path / "out")
    waiter = subprocess.Popen(
        [sys.executable, "-c", PUBLISH, str(tmp_path / "out")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        line = waiter.stderr.readline()
        assert line.startswith(f"Waiting for {tmp_path / '.out.lock'}, held by process {holder.pid} on ")
        assert f"on {socket.gethostname()} since 20" in line and "--flag 'two words'" in line
        holder.communicate("\n", timeout=PATIENCE_SECONDS)
        error = waiter.communicate("\n", timeout=PATIENCE_SECONDS)[1]
        assert "FileExistsError" in error and "Waiting" not in error
    finally:
        for process in (holder, waiter):
            process.kill()
            process.wait()


def test_free_lock_says_nothing(tmp_path, caplog):
    (tmp_path / "lock").write_text("process 1 on elsewhere since long ago, killed")
    with caplog.at_level(logging.DEBUG), locked(tmp_path / "lock"):
        assert (tmp_path / "lock").read_text().startswith(f"process {os.getpid()} on ")
    assert not caplog.records and not (tmp_path / "lock").exists()


def test_holder_names_the_run_that_it_is_part_of(tmp_path, monkeypatch):
    monkeypatch.setenv(RUN_NAME, "mine,\n backend=jax")
    with locked(tmp_path / "lock"):
        assert f"process {os.getpid()} of the run `mine, backend=jax` on " in str(find_holder(tmp_path / "lock"))


def test_lock_that_is_not_waited_for_keeps_the_holders_words(tmp_path):
    with locked(tmp_path / "lock"):
        before = (tmp_path / "lock").read_bytes()
        with pytest.raises(BlockingIOError), locked(tmp_path / "lock", wait=False):
            pass
        assert (tmp_path / "lock").read_bytes() == before


@pytest.mark.parametrize("holder", [b"", b"\xff\x1b[31m" + 900 * b"x"])
def test_words_of_a_holder_are_fit_for_one_line(tmp_path, holder):
    lines, is_held, may_end = [], threading.Event(), threading.Event()

    def hold():
        with locked(tmp_path / "lock"):
            (tmp_path / "lock").write_bytes(holder)
            is_held.set()
            may_end.wait(PATIENCE_SECONDS)

    def tell(line):
        lines.append(line)
        may_end.set()

    thread = threading.Thread(target=hold)
    thread.start()
    assert is_held.wait(PATIENCE_SECONDS)
    with locked(tmp_path / "lock", tell=tell):
        pass
    thread.join(PATIENCE_SECONDS)
    (line,) = lines
    assert "\x1b" not in line and len(line) < 600
    assert holder or "held by another process." in line


def test_output_is_still_published_once_by_many(tmp_path):
    made = []

    def make():
        try:
            with publishing(tmp_path / "out") as work:
                (work / "a").write_text("a")
                made.append(1)
        except FileExistsError:
            pass

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert made == [1] and sorted(path.name for path in tmp_path.iterdir()) == ["out"]
