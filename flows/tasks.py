"""Prefect tasks of the stages: names, retries, cache, log lines and progress.

Only its folder determines whether a stage must run. Prefect's cache reflects this: a key exists only while the folder
is complete, so a deleted folder is made again, and a folder unknown to Prefect counts as cached.
"""

import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect import Task
from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.assets import Asset, AssetProperties, materialize
from prefect.context import TaskRunContext
from prefect.logging import get_run_logger
from prefect.states import Completed, State
from prefect.tasks import MaterializingTask

from flows.server import RUN_LOGGERS, escape_record
from flows.stages import IS_THERE, StageRun, run_stage
from keras_bert_flow.console.terminal import JOINERS, escape_controls
from keras_bert_flow.files.paths import name_path
from keras_bert_flow.results.artifacts import WAITING
from keras_bert_flow.results.stages.data import CORPUS, RECORDS, VOCABULARY
from keras_bert_flow.results.stages.models import DISTILLATION, PRETRAINING
from keras_bert_flow.results.stages.tasks import AUGMENTATION, EVALUATION, FINETUNING

# Show the progress of a stage on the page of a run: its lines in the log, and a bar from the last counting line.

# Lines of `keras_bert_flow.console.progress` and `job_progress`: "step 1,200 of 5,000: loss 6.913, 0:12:30 left",
# "run 2 of 6, step 40 of 120: pretrained/seed-2, loss 0.513", and "part 2 of 4, tokenizing: 1,200 of 4,904 documents".
# Other lines may hold such numbers too: "3 of 120 labels are unreachable".
PART = re.compile(r"(?:^run|.*, part) (?P<done>\d[\d,]*) of (?P<total>[1-9][\d,]*), (?P<rest>.*)")
SHARE = re.compile(r"(?P<word>step |[\w ]+: )(?P<done>\d[\d,]*) of (?P<total>[1-9][\d,]*)\b")
STEP = "step "
UPDATE_SECONDS = 5.0  # each update is a request; a page refreshes no more often


def parse_share(line: str) -> float | None:
    """Return the percentage done according to a line; None if the line has none."""
    if part := PART.match(line):
        return _read_share(part, SHARE.match(part["rest"]))
    found = SHARE.match(line)
    return _read_share(found) if found and found["word"] == STEP else None


def _read_share(found: re.Match[str], inner: re.Match[str] | None = None) -> float:
    """Return the percentage of a match; of a part, which is begun and not done, with what is done of it."""
    done, total = (float(found[name].replace(",", "")) for name in ("done", "total"))
    if "rest" in found.groupdict():
        done += (_read_share(inner) / 100 if inner else 0.0) - 1
    return min(100.0, max(0.0, 100 * done / total))


class StageProgress:
    """Progress bar on the page of a task run, updated from the lines of its stage, which also go to the log.

    It never moves back: a stage that resumes from a checkpoint repeats some steps.
    """

    def __init__(self, stage: str, log: Callable[[str], None]):
        """Show that a stage has started.

        Args:
            stage: its name, used in the artifact's key.
        """
        self._stage, self._log, self._updated_at, self._share = stage, log, -UPDATE_SECONDS, 0.0
        self._artifact = create_progress_artifact(0.0, key=f"progress-{stage}", description=f"{stage}: started")

    def follow(self, line: str) -> None:
        self._log(line)
        if line.startswith(WAITING):
            self._update(self._share, escape_controls(line, JOINERS))
            return
        share = parse_share(line)
        if share is not None and time.monotonic() - self._updated_at >= UPDATE_SECONDS:
            self._updated_at, self._share = time.monotonic(), max(share, self._share)
            self._update(self._share, escape_controls(line, JOINERS))

    def finish(self) -> None:
        self._update(100.0, "done")

    def _update(self, share: float, words: str) -> None:
        update_progress_artifact(self._artifact, share, description=f"{self._stage}: {words}")


for run_logger in RUN_LOGGERS:
    logging.getLogger(run_logger).addFilter(escape_record)

CACHED = "Cached"  # Prefect's name for the state of a task that it did not have to run
RETRY_DELAY_SECONDS = 5.0


def cache_key(context: TaskRunContext | None, parameters: dict[str, Any]) -> str | None:
    """Return the cache key of a finished stage; None for one that must run."""
    stage: StageRun = parameters["stage"]
    return f"{stage.name}:{stage.key}:{name_path(stage.folder)}" if stage.is_finished() else None


def may_pass_next_time(task: Task, run: Any, state: State) -> bool:
    """Return whether to retry: all errors except those that the user must fix."""
    error = state.result(raise_on_failure=False)
    return not isinstance(error, (ValueError, FileNotFoundError))


SHOWN = {
    "task_run_name": "{stage.name} {stage.key}",
    "cache_key_fn": cache_key,
    "persist_result": True,
    "result_serializer": "json",
}
# Reading and writing may fail by chance; training resumes from its own checkpoints and is not retried.
RETRIED = {"retries": 1, "retry_delay_seconds": RETRY_DELAY_SECONDS, "retry_condition_fn": may_pass_next_time}


def follow(stage: StageRun) -> str | State:
    """Run a stage in a task, with its lines in the run's log; return its folder, with state `Cached` if it existed."""
    log, folder = get_run_logger(), name_path(stage.folder)
    if stage.is_finished():
        return Completed(name=CACHED, data=folder, message="The folder is there and whole.")
    progress = StageProgress(stage.name, lambda line: log.info("%s", line))
    run_stage(stage, progress.follow)
    progress.finish()
    return folder


def stage_task(name: str, description: str, **options: Any) -> MaterializingTask:
    """Return a task that makes one result, an asset whose lineage Prefect records."""
    decorate = materialize(
        name_asset(name, "none"), by="keras-bert-flow", name=name, description=description, **SHOWN, **options
    )
    return decorate(follow)


def name_asset(stage: str, key: str) -> str:
    """Return the asset key of a result, which depends on its content key rather than its location."""
    return f"kbf://{stage}/{key}"


# stage → its task
TASKS = {
    CORPUS.name: stage_task("write-corpus", "Write the built-in corpus and task.", **RETRIED),
    VOCABULARY.name: stage_task("learn-vocabulary", "Learn a vocabulary from the corpus.", **RETRIED),
    RECORDS.name: stage_task("write-records", "Build masked pre-training records from the corpus.", **RETRIED),
    PRETRAINING.name: stage_task("pretrain-model", "Pre-train the model on the records."),
    DISTILLATION.name: stage_task("distill-model", "Distil a smaller model from the pre-trained one."),
    AUGMENTATION.name: stage_task("augment-table", "Augment the training table of the task."),
    FINETUNING.name: stage_task("finetune-model", "Fine-tune the model on the task, once per seed."),
    EVALUATION.name: stage_task("evaluate-model", "Evaluate the models and write the report."),
}


@dataclass(frozen=True)
class TaskResult:
    """The result of a stage's task in a flow.

    Attributes:
        state: final state of its task run.
        seconds: how long it took, even if only to find the folder.
    """

    stage: StageRun
    state: State
    seconds: float

    @property
    def is_cached(self) -> bool:
        return self.state.name == CACHED


def run_task(stage: StageRun, results: list[TaskResult]) -> Path:
    """Run the task of a stage, append it to `results`, and return the stage's folder.

    Prefect draws an edge from each stage whose folder the command reads, or else from the previous stage.
    """
    log, step, started = get_run_logger(), TASKS[stage.name], time.monotonic()
    doing = (step.description or "").rstrip(".")
    how = IS_THERE if stage.is_finished() else f"running: {doing}"
    log.info("%s", stage.say(how))
    asset = Asset(
        key=name_asset(stage.name, stage.key), properties=AssetProperties(description=name_path(stage.folder))
    )
    inputs = [
        done.state for done in results if any(Path(word).is_relative_to(done.stage.folder) for word in stage.words)
    ]
    made = step.with_options(assets=[asset])
    state = made(stage, return_state=True, wait_for=inputs or [done.state for done in results[-1:]])
    folder = state.result()
    done = TaskResult(stage, state, round(time.monotonic() - started, 1))
    if not done.is_cached:
        log.info("%s: done in %s s", stage.name, done.seconds)
    results.append(done)
    return Path(folder)
