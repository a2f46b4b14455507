"""Fork a process for each run of training that is to die at a moment: Keras is imported once, every kill is real.

`Killer` starts this module as a server, which forks before any backend has a thread, reads a line of JSON for each run
and answers with what came of it.
"""

import json
import os
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

import keras

from tests.patience import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]


class Killer:
    """Runs training in processes that are killed; use in `with`.

    Args:
        arguments: what every run has in common, see `run_training`.
    """

    def __init__(self, **arguments):
        self._arguments = {name: str(value) for name, value in arguments.items()}

    def __enter__(self):
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.training.kill_server"],
            cwd=ROOT,
            env=os.environ | {"KERAS_BACKEND": keras.backend.backend()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *_):
        self._server.stdin.close()
        self._server.wait(PATIENCE_SECONDS)

    def run(self, output, moment="", after_seconds=None, **settings) -> tuple[int, list[int], float]:
        """Train, and die at a moment (see `arrange`), or some seconds after training has begun.

        Returns:
            The status, or the negative number of the signal; the steps of its lines of the log; the seconds it trained.
        """
        order = {"output": str(output), "moment": moment, "after_seconds": after_seconds, "settings": settings}
        print(json.dumps(self._arguments | order), file=self._server.stdin, flush=True)
        return tuple(json.loads(self._server.stdout.readline()))


def serve() -> None:
    """Answer each line of standard input, until it is closed."""
    from tests.training import pretrain_child  # imports all that training needs

    for line in sys.stdin:
        order = json.loads(line)
        read_end, write_end = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(read_end)
            os.dup2(2, 1)  # what libraries print is not an answer
            _train(pretrain_child, order, write_end)
        os.close(write_end)
        print(json.dumps(_follow(pid, read_end, order["after_seconds"])), flush=True)


def _train(pretrain_child, order, write_end) -> None:
    """Train in the forked process, and end it."""
    signal.alarm(PATIENCE_SECONDS)

    def tell(word):
        os.write(write_end, f"{word}\n".encode())

    del order["after_seconds"]
    try:
        run = pretrain_child.run_training if "records" in order else pretrain_child.run_finetuning
        status = run(**order, tell=tell)
    except BaseException:
        traceback.print_exc()
        status = 1
    os._exit(status)


def _follow(pid: int, read_end: int, after_seconds: float | None) -> tuple[int, list[int], float]:
    """Read what a run tells, and kill it some seconds after it has told of its beginning."""
    steps, began = [], None
    with open(read_end) as told:
        for word in told:
            if word == "begun\n":
                began = time.monotonic()
                if after_seconds is not None:
                    time.sleep(after_seconds)
                    os.kill(pid, signal.SIGKILL)
            else:
                steps.append(int(word))
    seconds = time.monotonic() - (began or time.monotonic())
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), steps, seconds


if __name__ == "__main__":
    serve()
