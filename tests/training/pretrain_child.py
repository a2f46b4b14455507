"""Pre-train in a process of its own that dies by SIGKILL at a moment: `report:3`, `saved:7` or `removed`."""

import os
import shutil
import signal
import sys
from pathlib import Path

from keras_bert_flow.training import pretrain as module
from keras_bert_flow.training.checkpoints import Checkpoints
from tests.oracles.tiny_records import make_tiny_config

# Five epochs of 23 records; no two of the borders divide each other.
SETTINGS = {"total_steps": 24, "log_every_steps": 3, "evaluate_every_steps": 8, "checkpoint_every_steps": 7}


def main(records, output, moment):
    kind, _, step = moment.partition(":")

    def report(line):
        print(line["step"], flush=True)
        if kind == "report" and line["step"] == int(step):
            die()

    if kind == "saved":
        die_after(Checkpoints, "save", lambda self, model, saved_step, progress: saved_step == int(step))
    elif kind == "removed":
        die_after(shutil, "rmtree", lambda path, **_: Path(path).name == module.CHECKPOINTS)
    module.pretrain(make_tiny_config(**SETTINGS), Path(records), Path(output), report)


def die_after(place, name, is_time):
    done = getattr(place, name)

    def do_and_die(*arguments, **named):
        done(*arguments, **named)
        if is_time(*arguments, **named):
            die()

    setattr(place, name, do_and_die)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
