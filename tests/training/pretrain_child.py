"""Train in a process of its own that stops at a moment.

It dies by SIGKILL at `report:3`, `saved:7`, `removed` and the moments in `KILLS`, and gets SIGTERM at `step:5` or
`held_out:8`.
"""

import os
import shutil
import signal
from pathlib import Path

from keras_bert_flow.cli import explain
from keras_bert_flow.conversion import model_directory
from keras_bert_flow.results import publishing
from keras_bert_flow.training.finetuning import finetune, grid, task_runs
from keras_bert_flow.training.loop import checkpoints
from keras_bert_flow.training.loop import train as loop
from keras_bert_flow.training.loop.checkpoints import Checkpoints
from keras_bert_flow.training.loop.steps import StepFollower
from keras_bert_flow.training.pretraining import pretrain as module
from keras_bert_flow.training.pretraining.pretrain import pretrain
from tests.oracles.tiny_records import make_tiny_config

# Five epochs of 23 records; no two of the intervals divide each other.
SETTINGS = {"total_steps": 24, "log_every_steps": 3, "evaluate_every_steps": 8, "checkpoint_every_steps": 7}


def run_training(records, output, moment, settings, tell) -> int:
    """Pre-train, telling each line's step, and `begun` after the first step; return the status of the command."""

    def report(line):
        tell(line["step"])
        if moment == f"report:{line['step']}":
            die()

    tell_of_first_step(tell)
    arrange(moment)
    try:
        pretrain(make_tiny_config(**SETTINGS | settings), Path(records), Path(output), report)
    except Exception as error:
        return explain(error)
    return 0


def run_finetuning(model, tables, output, moment, settings, tell) -> int:
    """Fine-tune as `run_training` pre-trains; of moments only `report:pretrained/seed-2:7`, those of checkpoints and
    those of a grid: `loser`, `table` and `chosen`."""
    from tests.training.separable_task import make_task_config

    def report(line):
        tell(line["step"])
        if moment == f"report:{line['run']}:{line['step']}":
            die()

    tell_of_first_step(tell)
    arrange(moment)
    finetune.finetune(make_task_config(Path(tables), **settings), Path(model), Path(output), report)
    return 0


def tell_of_first_step(tell):
    told = []

    def is_first(*_):
        told.append(True)
        return len(told) == 1

    act_after(setattr, StepFollower, "on_train_batch_end", is_first, lambda: tell("begun"))


def arrange(moment, put=setattr):
    """Have a signal sent at a moment; `put` replaces an attribute."""
    kind, _, step = moment.partition(":")
    if kind == "saved":
        act_after(put, Checkpoints, "save", lambda self, model, saved, progress: saved == int(step), die)
    elif kind == "removed":
        act_after(put, shutil, "rmtree", lambda path, **_: Path(path).name == module.CHECKPOINTS, die)
    elif kind == "step":
        act_after(
            put, StepFollower, "on_train_batch_begin", lambda self, *_: self.interval.step == int(step) - 1, ask_to_stop
        )
    elif kind == "held_out":
        score = module.score_pretraining

        def score_and_be_stopped(model, batches, *others):
            if int(model.optimizer.iterations) == int(step):
                next(batches)
                ask_to_stop()
            return score(model, batches, *others)

        put(module, "score_pretraining", score_and_be_stopped)
    elif kind in KILLS:
        KILLS[kind](put, step)


def die_half_written(put, step):
    """Die when half of the state is in its file."""
    write = checkpoints.save_file

    def write_half(state, path):
        write(state, path)
        os.truncate(path, path.stat().st_size // 2)
        die()

    def is_time(self, state, facts):
        return facts["step"] == int(step)

    act_before(put, Checkpoints, "_write", is_time, lambda: put(checkpoints, "save_file", write_half))


def die_before_rename(put, step):
    act_before(put, os, "rename", lambda _, path: is_checkpoint(path, step), die)


def die_after_rename(put, step):
    act_after(put, os, "rename", lambda _, path: is_checkpoint(path, step), die)


def die_between_renames(put, step):
    act_after(put, os, "rename", lambda path, _: is_checkpoint(path, step), die)


def die_while_pruning(put, step):
    remove = shutil.rmtree

    def remove_half(path, **named):
        if is_checkpoint(path, step):
            next(Path(path).iterdir()).unlink()
            die()
        remove(path, **named)

    put(shutil, "rmtree", remove_half)


def die_while_best_is_written(put, step):
    act_before(put, os, "rename", lambda _, path: is_checkpoint(path, step, module.BEST), die)


def die_in_the_line(put, step):
    append = loop.append_log

    def append_half(folder, line):
        append(folder, line)
        if line["step"] == int(step):
            path = folder / "log.jsonl"
            os.truncate(path, path.stat().st_size - 9)
            die()

    put(loop, "append_log", append_half)


def die_before_the_model(put, _):
    act_before(put, module, "save_model_directory", lambda *_, **__: True, die)


def die_while_the_model_is_written(put, _):
    write = model_directory.write_tensors

    def write_half(path, tensors):
        write(path, tensors)
        os.truncate(path, path.stat().st_size // 2)
        die()

    put(model_directory, "write_tensors", write_half)


def die_after_the_manifest(put, _):
    act_after(put, publishing, "write_manifest", lambda *_, **__: True, die)


def die_while_a_loser_is_removed(put, _):
    remove = shutil.rmtree

    def remove_half(path, **named):
        if Path(path).name == task_runs.MODEL:
            next(Path(path).iterdir()).unlink()
            die()
        remove(path, **named)

    put(shutil, "rmtree", remove_half)


def die_after_the_table(put, _):
    act_after(put, grid, "write_atomically", lambda *_: True, die)


def die_after_the_choice(put, _):
    act_after(put, os, "rename", lambda _, path: Path(path).name == task_runs.PRETRAINED, die)


KILLS = {
    "loser": die_while_a_loser_is_removed,
    "table": die_after_the_table,
    "chosen": die_after_the_choice,
    "half": die_half_written,
    "written": die_before_rename,
    "renamed": die_after_rename,
    "replaced": die_between_renames,
    "pruning": die_while_pruning,
    "best": die_while_best_is_written,
    "line": die_in_the_line,
    "model": die_before_the_model,
    "half_model": die_while_the_model_is_written,
    "manifest": die_after_the_manifest,
}


def is_checkpoint(path, step, parent=module.CHECKPOINTS):
    return Path(path).name == f"step-{int(step):08d}" and Path(path).parent.name == parent


def act_before(put, place, name, is_time, act):
    do = getattr(place, name)

    def act_and_do(*arguments, **named):
        if is_time(*arguments, **named):
            act()
        return do(*arguments, **named)

    put(place, name, act_and_do)


def act_after(put, place, name, is_time, act):
    do = getattr(place, name)

    def do_and_act(*arguments, **named):
        done = do(*arguments, **named)
        if is_time(*arguments, **named):
            act()
        return done

    put(place, name, do_and_act)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def ask_to_stop():
    os.kill(os.getpid(), signal.SIGTERM)
