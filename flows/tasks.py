"""Show each stage to Prefect: its name, its retries, its cache, its lines in the log.

Whether a stage must run is decided by its folder alone. Prefect's cache is a view of that: a key exists only while the
folder is whole, so a folder that was deleted is made again, and one that Prefect has never heard of counts as cached.
"""

import time
from pathlib import Path
from typing import Any

from prefect import Task, task
from prefect.context import TaskRunContext
from prefect.logging import get_run_logger
from prefect.states import Completed, State

from flows.logs import escape_run_logs
from flows.stages import StageRun, corpus_stage, run_stage
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.local_paths import name_path
from keras_bert_flow.stages.corpus import needs_builtin, resolve_builtin
from keras_bert_flow.stages.distillation import DISTILLATION
from keras_bert_flow.stages.pretraining import PRETRAINING

escape_run_logs()

CACHED = "Cached"  # as Prefect names the state of a task that it did not have to run
RETRY_DELAY_SECONDS = 5.0


def cache_key(context: TaskRunContext | None, parameters: dict[str, Any]) -> str | None:
    """Name the result of a finished stage; nothing for one that must run."""
    stage: StageRun = parameters["stage"]
    return f"{stage.name}:{stage.key}:{name_path(stage.folder)}" if stage.is_finished() else None


def may_pass_next_time(task: Task, run: Any, state: State) -> bool:
    """Retry all but what the user has to mend."""
    error = state.result(raise_on_failure=False)
    return not isinstance(error, (ValueError, FileNotFoundError))


SHOWN = {
    "task_run_name": "{stage.name} {stage.key}",
    "cache_key_fn": cache_key,
    "persist_result": True,
    "result_serializer": "json",
}
# Reading and writing may fail by chance; training resumes from its own checkpoints and is not tried again.
RETRIED = {"retries": 1, "retry_delay_seconds": RETRY_DELAY_SECONDS, "retry_condition_fn": may_pass_next_time}


@task(name="write-corpus", **SHOWN, **RETRIED)
def write_corpus(stage: StageRun) -> str:
    """Write out the built-in corpus and task."""
    return follow(stage)


@task(name="learn-vocabulary", **SHOWN, **RETRIED)
def learn_vocabulary(stage: StageRun) -> str:
    """Count the words of the corpus and learn its WordPiece vocabulary."""
    return follow(stage)


@task(name="write-records", **SHOWN, **RETRIED)
def write_records(stage: StageRun) -> str:
    """Turn documents into masked sentence pairs."""
    return follow(stage)


@task(name="pretrain-model", **SHOWN)
def pretrain_model(stage: StageRun) -> str:
    """Train the model on the records."""
    return follow(stage)


@task(name="distill-model", **SHOWN)
def distill_model(stage: StageRun) -> str:
    """Train a smaller model on what the pre-trained one guesses."""
    return follow(stage)


# What is trained on records: stage → task
TRAINING = {PRETRAINING.name: pretrain_model, DISTILLATION.name: distill_model}


@task(name="finetune-model", **SHOWN)
def finetune_model(stage: StageRun) -> str:
    """Fine-tune the model on its task, once per seed."""
    return follow(stage)


@task(name="evaluate-model", **SHOWN)
def evaluate_model(stage: StageRun) -> str:
    """Measure the models and write the report."""
    return follow(stage)


def follow(stage: StageRun) -> str | State:
    """Run a stage under a task, its lines in the run's log; return its folder, as `Cached` where it was there."""
    log = get_run_logger()
    cached = run_stage(stage, lambda line: log.info("%s", line))
    folder = name_path(stage.folder)
    return Completed(name=CACHED, data=folder, message="The folder is there and whole.") if cached else folder


def perform(step: Task, stage: StageRun, rows: list[dict[str, Any]]) -> Path:
    """Run the task of a stage and add a row to the table of stages; return the stage's folder."""
    log, started = get_run_logger(), time.monotonic()
    log.info("%s %s: %s", stage.name, stage.key, "is there" if stage.is_finished() else "running")
    state = step(stage, return_state=True)
    folder = state.result()
    seconds, cached = round(time.monotonic() - started, 1), state.name == CACHED
    if not cached:
        log.info("%s: done in %s s", stage.name, seconds)
    rows.append({"stage": stage.name, "key": stage.key, "cached": cached, "seconds": seconds, "folder": folder})
    return Path(folder)


def fill_builtin(config: PipelineConfig, rows: list[dict[str, Any]]) -> PipelineConfig:
    """Put files in the places of the word `builtin`, writing them out first."""
    if not needs_builtin(config):
        return config
    return resolve_builtin(config, perform(write_corpus, corpus_stage(config), rows))
