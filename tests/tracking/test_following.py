"""What a logger is handed while a log grows, with a server of this file's own that can be down."""

import json

import pytest

from keras_bert_flow.tracking.logger import RETRY_SECONDS, End, LogTail, RunFacts, find_numbers, follow


class Server:
    """A logger, and the run that it has at its server; the calls whose numbers are in `fails` do not reach it."""

    def __init__(self, fails=(), last_step=-1):
        self.steps, self.ends, self.calls, self.fails, self.last_step = [], [], 0, fails, last_step

    def _reach(self):
        self.calls += 1
        if self.calls in self.fails:
            raise ConnectionError(f"refused call {self.calls}")

    def open(self, facts):
        self._reach()
        return max(self.steps, default=self.last_step)

    def log(self, lines):
        self._reach()
        self.steps += [line["step"] for line in lines]

    def close(self, status, metrics):
        self._reach()
        self.ends.append((status, metrics))


def follow_log(folder, server, *moments):
    """Follow a log to which each moment adds steps, the last one the end; return (result, warnings, waits)."""
    log, left, warnings, waits = folder / "log.jsonl", list(moments), [], []

    def wait(seconds):
        waits.append(seconds)
        steps = left.pop(0)
        with open(log, "a") as file:
            file.writelines(json.dumps({"step": step, "loss": step / 2}) + "\n" for step in steps)
        return None if left else End("finished", {"score": 1.0})

    facts = RunFacts("id", "name", "stage", "key", {}, log, folder)
    return follow(lambda: server, facts, wait, warnings.append), warnings, waits


def test_every_line_is_logged_once_and_in_order(tmp_path):
    server = Server()
    assert follow_log(tmp_path, server, [], [3, 6], [], [7], [9])[:2] == (True, [])
    assert server.steps == [3, 6, 7, 9] and server.ends == [("finished", {"score": 1.0})]


def test_steps_that_the_server_has_are_left_out(tmp_path):
    server = Server(last_step=6)
    follow_log(tmp_path, server, [3, 6], [7], [])
    assert server.steps == [7]


@pytest.mark.parametrize("fails", [(1,), (2,), (1, 2, 3), (3,)])
def test_server_that_was_down_gets_everything_later_after_one_warning(tmp_path, fails):
    server = Server(fails)
    is_done, warnings, waits = follow_log(tmp_path, server, [3], [6], [7], [8], [9], [])
    assert is_done and server.steps == [3, 6, 7, 8, 9] and len(server.ends) == 1
    assert warnings == [f"ConnectionError: refused call {fails[0]}"] and RETRY_SECONDS in waits


def test_server_that_is_down_at_the_end_is_left(tmp_path):
    assert follow_log(tmp_path, Server(range(1, 99)), [3], [6])[:2] == (False, ["ConnectionError: refused call 1"])


def test_line_that_is_half_written_comes_when_it_is_whole(tmp_path):
    tail, log = LogTail(tmp_path / "log.jsonl"), tmp_path / "log.jsonl"
    assert tail.read() == []
    log.write_text('{"step": 3}\n{"st')
    assert tail.read() == [{"step": 3}] and tail.read() == []
    with open(log, "a") as file:
        file.write('ep": 6}\n')
    assert tail.read() == [{"step": 6}]


def test_numbers_alone_are_logged():
    line = {"step": 3, "loss": 4.5, "tokens_per_second": 7, "run": "pretrained/seed-1", "is_last": True, "score": None}
    assert find_numbers(line) == {"loss": 4.5, "tokens_per_second": 7.0}
