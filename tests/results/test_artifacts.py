import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from keras_bert_flow.files.outputs import explain_os_error
from keras_bert_flow.results import artifacts
from keras_bert_flow.results.artifacts import (
    canonical_json,
    content_key,
    file_digest,
    locked,
    publishing,
    write_atomically,
)
from tests.patience import PATIENCE_SECONDS


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def test_publishing_shows_a_folder_only_when_it_is_whole(tmp_path):
    output = tmp_path / "new" / "deep" / "result"
    with publishing(output) as work:
        (work / "a").write_text("1")
        assert not output.exists()
        assert work.parent == output.parent  # a rename is atomic within one file system alone
    assert names_in(output) == ["a"]
    assert names_in(output.parent) == ["result"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_publishing_leaves_nothing_after_an_error(error, tmp_path):
    with pytest.raises(error), publishing(tmp_path / "result") as work:
        (work / "a").write_text("1")
        raise error
    assert names_in(tmp_path) == []


def test_publishing_keeps_the_work_of_a_resumable_stage(tmp_path):
    output = tmp_path / "result"
    with pytest.raises(ValueError), publishing(output, resumable=True) as work:
        (work / "step-1").write_text("1")
        raise ValueError
    assert names_in(tmp_path) == [work.name] and not output.exists()
    with publishing(output, resumable=True) as work:
        assert names_in(work) == ["step-1"]
    assert names_in(tmp_path) == ["result"]


KILLED_WHILE_WRITING = """
import os, sys
from keras_bert_flow.results import artifacts
def die(*_):
    os.kill(os.getpid(), 9)
with artifacts.publishing(sys.argv[1], resumable=True) as work:
    (work / "run").mkdir()
    (work / "run" / "model").write_text("1")
    if sys.argv[2] == "replace":
        os.replace = die
        artifacts.write_atomically(work / "run" / "run.json", b"{}")
    artifacts.Path.unlink = die
    artifacts.follow_umask(work / "run" / "model")
"""


@pytest.mark.parametrize("moment", ["replace", "unlink"])
def test_publishing_leaves_out_what_a_kill_left_half_written(moment, tmp_path):
    output = tmp_path / "result"
    command = [sys.executable, "-c", KILLED_WHILE_WRITING, output, moment]
    killed = subprocess.run(command, timeout=PATIENCE_SECONDS, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(names_in(tmp_path / ".result.work" / "run")) == 2
    with publishing(output, resumable=True):
        pass
    assert names_in(output / "run") == ["model"]


def test_publishing_empties_what_a_killed_run_left(tmp_path):
    work = tmp_path / ".result.work"
    (work / "sub").mkdir(parents=True)
    (work / "sub" / "old").write_text("1")
    with publishing(tmp_path / "result") as found:
        assert found == work and names_in(work) == []


def test_publishing_never_publishes_old_files_that_it_cannot_remove(tmp_path, monkeypatch):
    (tmp_path / ".result.work").mkdir()
    monkeypatch.setattr(artifacts.shutil, "rmtree", lambda path, ignore_errors: None)
    with pytest.raises(OSError, match=r"\.result\.work"), publishing(tmp_path / "result"):
        pytest.fail("began on top of old files")


def test_publishing_refuses_an_output_that_exists(tmp_path):
    (tmp_path / "result").mkdir()
    with (
        pytest.raises(FileExistsError, match=r"must be new\. Received: .*result, which exists"),
        publishing(tmp_path / "result"),
    ):
        pytest.fail("began")
    assert names_in(tmp_path) == ["result"]


@pytest.mark.parametrize("name", ["file", "file/result", "file/deep/result"])
def test_publishing_refuses_a_place_that_cannot_be_written(name, tmp_path):
    (tmp_path / "file").write_text("1")
    with pytest.raises(OSError, match="file"), publishing(tmp_path / name):
        pytest.fail("began")
    assert names_in(tmp_path) == ["file"]


def test_publishing_takes_a_relative_path_and_stays_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with publishing("é result") as work:
        (work / "a").write_text("1")
        os.chdir("/")
    assert names_in(tmp_path / "é result") == ["a"]


def test_second_writer_in_a_thread_waits_and_then_sees_the_result(tmp_path):
    output, events = tmp_path / "result", []
    began = threading.Event()

    def second():
        began.wait()
        try:
            with publishing(output):
                events.append("second began")
        except FileExistsError:
            events.append("second sees the result")

    thread = threading.Thread(target=second)
    thread.start()
    with publishing(output) as work:
        began.set()
        time.sleep(0.3)
        (work / "a").write_text("1")
        events.append("first ends")
    thread.join(PATIENCE_SECONDS)
    assert events == ["first ends", "second sees the result"]
    assert names_in(tmp_path) == ["result"]


def publish_once(output, number, log):
    try:
        with publishing(output) as work:
            with open(log, "a") as file:
                file.write(f"{number} begins\n")
            time.sleep(0.1)
            (work / "winner").write_text(str(number))
            with open(log, "a") as file:
                file.write(f"{number} ends\n")
            if number % 2:  # every second writer fails, and the next one takes over
                raise ValueError
    except (FileExistsError, ValueError):
        pass


def test_writers_in_processes_come_one_after_the_other(tmp_path):
    context = multiprocessing.get_context("spawn")  # a fork of a process with a backend's threads can fail
    log = tmp_path / "log"
    log.touch()
    processes = [context.Process(target=publish_once, args=(tmp_path / "result", n, log)) for n in (1, 3, 5, 7, 2, 4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(PATIENCE_SECONDS)
    assert [process.exitcode for process in processes] == [0] * 6
    lines = [line.split() for line in log.read_text().splitlines()]
    assert [word for _, word in lines] == ["begins", "ends"] * (len(lines) // 2)
    assert [n for n, _ in lines[::2]] == [n for n, _ in lines[1::2]]
    assert int((tmp_path / "result" / "winner").read_text()) % 2 == 0
    assert names_in(tmp_path) == ["log", "result"]


KILLED = """
import sys, time
from keras_bert_flow.results.artifacts import publishing
with publishing(sys.argv[1]) as work:
    (work / "half").write_text("1")
    print("ready", flush=True)
    time.sleep(1000)
"""


def test_lock_of_a_killed_process_is_no_obstacle(tmp_path):
    command = [sys.executable, "-c", KILLED, tmp_path / "result"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert names_in(tmp_path) == [".result.lock", ".result.work"]
    started = time.perf_counter()
    with publishing(tmp_path / "result") as work:
        assert names_in(work) == []
    assert time.perf_counter() - started < PATIENCE_SECONDS
    assert names_in(tmp_path) == ["result"]


def test_lock_is_held_by_one_thread_at_a_time(tmp_path):
    inside, most = [], []

    def enter():
        for _ in range(20):
            with locked(tmp_path / "lock"):
                inside.append(1)
                most.append(len(inside))
                time.sleep(0.001)
                inside.pop()

    threads = [threading.Thread(target=enter) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert len(most) == 120 and max(most) == 1
    assert names_in(tmp_path) == []


def test_write_atomically_replaces_a_file_and_leaves_no_other(tmp_path):
    for content in (b"one", b"two" * 1000, b""):
        write_atomically(tmp_path / "file", content)
        assert (tmp_path / "file").read_bytes() == content
    assert names_in(tmp_path) == ["file"]


def test_write_atomically_keeps_the_old_file_when_the_disk_is_full(tmp_path, monkeypatch):
    def fail(descriptor):
        raise OSError(28, "No space left on device")

    write_atomically(tmp_path / "file", b"old")
    monkeypatch.setattr(artifacts.os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        write_atomically(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"old"
    assert names_in(tmp_path) == ["file"]


@pytest.mark.parametrize("resumable", [False, True])
@pytest.mark.parametrize(
    "error",
    [
        OSError(28, "No space left on device"),
        OSError(122, "Disk quota exceeded"),
        RuntimeError("I/O error: No space left on device (os error 28)"),  # as of safetensors
        OSError("1024 requested and 496 written"),  # of NumPy
    ],
)
def test_full_disk_names_the_output_and_what_is_kept(error, resumable, tmp_path):
    with (
        pytest.raises(OSError, match="must fit on its disk") as raised,
        publishing(tmp_path / "result", resumable) as w,
    ):
        (w / "checkpoint").write_text("1")
        raise error
    message = explain_os_error(raised.value)
    assert f"Received: {tmp_path / 'result'}, " in message and "run the same command again" in message
    assert (f"{tmp_path / '.result.work'} is kept" if resumable else "nothing of it is left") in message
    assert names_in(tmp_path) == ([".result.work"] if resumable else [])


def test_error_of_a_write_without_a_name_gets_one(tmp_path):
    with pytest.raises(OSError) as raised, publishing(tmp_path / "result"):
        raise OSError(30, "Read-only file system")
    assert str(tmp_path / ".result.work") in explain_os_error(raised.value)
    with pytest.raises(OSError) as raised:
        write_atomically(tmp_path / "none" / "x", b"1")
    assert str(tmp_path / "none") in explain_os_error(raised.value)


def test_content_key_changes_with_everything_that_it_names():
    facts = {"stage": "s", "settings": {"a": 1}, "inputs": {"x": "1"}, "revision": 1}
    others = {"stage": "t", "settings": {"a": 2}, "inputs": {"x": "2"}, "revision": 2}
    key = content_key(**facts)
    assert len(key) == 16 and set(key) <= set("0123456789abcdef")
    assert content_key(**facts) == key
    assert len({key, *(content_key(**facts | {name: value}) for name, value in others.items())}) == 5


def test_canonical_json_is_the_same_for_equal_values():
    assert (
        canonical_json({"b": [1, 2.5], "a": "é"})
        == canonical_json({"a": "é", "b": (1, 2.5)})
        == '{"a":"é","b":[1,2.5]}'
    )


def test_file_digest_is_the_sha256_of_the_content(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    assert (
        file_digest(tmp_path / "a") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    )  # FIPS 180-2
