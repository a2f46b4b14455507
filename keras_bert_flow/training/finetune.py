"""Fine-tune a model on a task, once a seed, and the same model from random weights beside it."""

import json
import logging
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras

from keras_bert_flow.artifacts import write_atomically
from keras_bert_flow.config import PipelineConfig
from keras_bert_flow.conversion.model_directory import load_task_model, save_model_directory
from keras_bert_flow.data.tasks import TaskBatches, predict_features, read_batches, read_tokenizer
from keras_bert_flow.keys import finetuning_key, folder_digest
from keras_bert_flow.records.publish import Contents, publish
from keras_bert_flow.tasks.stored import write_task
from keras_bert_flow.training.best import BestCheckpoint
from keras_bert_flow.training.checkpoints import Checkpoints
from keras_bert_flow.training.early_stopping import StopWithoutGain
from keras_bert_flow.training.identity import finetuning_identity, list_changes
from keras_bert_flow.training.loop import Borders, train
from keras_bert_flow.training.optimizers import make_guarded_optimizer
from keras_bert_flow.training.precision import arithmetic, seed_everything
from keras_bert_flow.training.schedules import WarmupDecay
from keras_bert_flow.training.task_data import TaskData, read_task_data

PRETRAINED, RANDOM = "pretrained", "random"
RUN_FILE = "run.json"
CHECKPOINTS, BEST = "checkpoints", "best"
LOGS_A_RUN = 20
_logger = logging.getLogger(__name__)


def finetune(
    config: PipelineConfig,
    model: str | Path,
    output: str | Path,
    report: Callable[[Mapping[str, Any]], None] = print,
    callbacks: Sequence[keras.callbacks.Callback] = (),
) -> Path:
    """Publish a folder with `<start>/seed-<n>/`: `model/`, `log.jsonl` and `run.json`; at once where it is there.

    `<start>` is `pretrained` and, unless told not to compare, `random`: the same shape from new weights. A killed run
    goes on where it was.

    Args:
        config: its sections `task` and `finetuning` count.
        model: a model directory, ours or Hugging Face's.
        output: the folder.
        report: called with every line of a log.
        callbacks: as of `pretrain`, begun and ended in each run anew. An epoch is the steps from one line of the log to
            the next, not a pass over the table.
    Raises:
        FileNotFoundError: a table or the model is missing.
        ValueError: a table or the model is unusable; the message says why.
        Interrupted: SIGTERM or SIGINT came; run again to go on.
    """
    if config.distribution.kind not in ("auto", "single"):
        _logger.warning(
            "Fine-tuning takes one device: distribution.kind=%s is for pre-training.", config.distribution.kind
        )
    model, key = Path(model), finetuning_key(config, Path(model))
    identity = finetuning_identity(config, model)
    tokenizer = read_tokenizer(model)
    data = read_task_data(config, tokenizer)

    def build(work: Path) -> Contents:
        classifier = None
        for start, seed in list_runs(config):
            folder, run = work / start / f"seed-{seed}", {"start": start, "seed": seed}
            if not _is_finished(folder, identity):
                classifier = _start_run(classifier, model, data, config, start, seed)
                seconds = _train_run(classifier, data, config, folder, identity | run, report, callbacks)
                length = config.finetuning.sequence_length
                save_model_directory(
                    classifier, folder / "model", model / "vocab.txt", tokenizer.cased, max_tokens=length
                )
                write_task(folder / "model", data.task, length)
                run |= {"seconds": round(seconds, 1), "identity": identity}
                write_atomically(folder / RUN_FILE, json.dumps(run).encode())
            for name in (CHECKPOINTS, BEST):  # a kill may have come between the two
                shutil.rmtree(folder / name, ignore_errors=True)
        settings = config.model_dump(mode="json", include={"task", "finetuning", "backend"})
        return Contents(settings, {"model": folder_digest(model)})

    with arithmetic(config.finetuning.precision):
        return publish(output, "finetuning", key, build, resumable=True)


def list_runs(config: PipelineConfig) -> Iterator[tuple[str, int]]:
    """Yield (start, seed) of every run."""
    for start in (PRETRAINED, RANDOM) if config.finetuning.compare_random else (PRETRAINED,):
        for seed in config.finetuning.seeds:
            yield start, seed


def _is_finished(folder: Path, identity: Mapping[str, Any]) -> bool:
    if not (folder / RUN_FILE).is_file():
        return False
    changes = list_changes(json.loads((folder / RUN_FILE).read_text(encoding="utf-8"))["identity"], identity)
    if changes:
        raise ValueError(
            f"A run must go on as it began. Received: {folder} with another {changes}. "
            "Undo the change, or choose another output folder."
        )
    return True


def _start_run(model, folder: Path, data: TaskData, config: PipelineConfig, start: str, seed: int):
    """Return a compiled model in its first state; one that is compiled already takes the state of a new one."""
    seed_everything(seed)
    rates = dict.fromkeys(("dropout_rate", "attention_dropout_rate"), config.finetuning.dropout_rate)
    fresh = load_task_model(data.task.kind, folder, labels=data.task.labels, **rates, **data.task.model_options)
    if start == RANDOM:
        fresh = type(fresh).from_config(fresh.get_config())
    if model is None:
        return fresh
    for variable, first in zip(model.variables, fresh.variables, strict=True):
        variable.assign(first)
    return model


def _train_run(
    model, data: TaskData, config: PipelineConfig, folder: Path, identity: Mapping[str, Any], report, callbacks
) -> float:
    settings, task = config.finetuning, data.task
    folder.mkdir(parents=True, exist_ok=True)
    batches = TaskBatches(data.train, settings.batch_size, identity["seed"], settings.max_widths)
    total_steps = settings.epochs * batches.steps_per_epoch
    _compile(model, config, total_steps)
    is_chosen = settings.publish == "best"
    best = BestCheckpoint(folder / BEST, identity, is_needed=is_chosen)
    if settings.patience_epochs is not None:
        callbacks = (*callbacks, StopWithoutGain(folder, f"dev_{task.main_metric}", settings.patience_epochs))

    def evaluate(until_stopped) -> dict[str, float]:
        outputs = predict_features(model, data.dev, settings.max_widths, follow=until_stopped)
        scores = task.score(data.dev_examples, task.decode(outputs, data.dev, data.dev_examples))
        if is_chosen:
            best.offer(model, model.optimizer.steps, -scores[task.main_metric])
        return {"dev_loss": task.measure_loss(outputs, data.dev)} | {
            f"dev_{name}": score for name, score in scores.items()
        }

    seconds = train(
        model,
        lambda step: read_batches(batches, step),
        Borders(total_steps, max(1, total_steps // LOGS_A_RUN), batches.steps_per_epoch, batches.steps_per_epoch),
        folder,
        Checkpoints(folder / CHECKPOINTS, identity, keep=1),
        evaluate,
        batches.mean_positions,
        lambda line: report({"run": str(folder.relative_to(folder.parents[1]))} | dict(line)),
        callbacks=callbacks,
    )
    if is_chosen:
        best.restore(model)
    return seconds


def _compile(model, config: PipelineConfig, total_steps: int) -> None:
    """Compile once; a model that is compiled has its optimizer set back instead."""
    settings = config.finetuning
    if model.compiled:
        model.optimizer.reset()
        return
    warmup_steps = int(settings.warmup_fraction * total_steps)
    schedule = WarmupDecay(settings.learning_rate, warmup_steps, total_steps, settings.decay, settings.decay_from)
    optimizer = make_guarded_optimizer(
        settings.optimizer,
        schedule,
        settings.weight_decay,
        settings.clip_norm,
        settings.layer_decay,
        precision=settings.precision,
    )
    model.compile(optimizer=optimizer, auto_scale_loss=False)  # the guard scales it
