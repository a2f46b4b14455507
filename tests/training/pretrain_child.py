"""Pre-train in a process of its own that stops at a moment.

It dies by SIGKILL at `report:3`, `saved:7` or `removed`, and gets SIGTERM at `step:5` or `held_out:8`.
"""

import os
import shutil
import signal
import sys
from pathlib import Path

from keras_bert_flow.cli import explain
from keras_bert_flow.training import pretrain as module
from keras_bert_flow.training.checkpoints import Checkpoints
from keras_bert_flow.training.steps import StepFollower
from tests.oracles.tiny_records import make_tiny_config

# Five epochs of 23 records; no two of the borders divide each other.
SETTINGS = {"total_steps": 24, "log_every_steps": 3, "evaluate_every_steps": 8, "checkpoint_every_steps": 7}


def main(records, output, moment):
    def report(line):
        print(line["step"], flush=True)
        if moment == f"report:{line['step']}":
            die()

    arrange(moment)
    try:
        module.pretrain(make_tiny_config(**SETTINGS), Path(records), Path(output), report)
    except Exception as error:
        sys.exit(explain(error))


def arrange(moment, put=setattr):
    """Have a signal sent at a moment; `put` replaces an attribute."""
    kind, _, step = moment.partition(":")
    if kind == "saved":
        act_after(put, Checkpoints, "save", lambda self, model, saved, progress: saved == int(step), die)
    elif kind == "removed":
        act_after(put, shutil, "rmtree", lambda path, **_: Path(path).name == module.CHECKPOINTS, die)
    elif kind == "step":
        act_after(
            put, StepFollower, "on_train_batch_begin", lambda self, *_: self.stretch.step == int(step) - 1, ask_to_stop
        )
    elif kind == "held_out":
        score = module.score_pretraining

        def score_and_be_stopped(model, batches, *others):
            if int(model.optimizer.iterations) == int(step):
                next(batches)
                ask_to_stop()
            return score(model, batches, *others)

        put(module, "score_pretraining", score_and_be_stopped)


def act_after(put, place, name, is_time, act):
    done = getattr(place, name)

    def do_and_act(*arguments, **named):
        done(*arguments, **named)
        if is_time(*arguments, **named):
            act()

    put(place, name, do_and_act)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def ask_to_stop():
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main(*sys.argv[1:])
