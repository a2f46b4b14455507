"""Fine-tune a model on a task, once a seed, and the same model from random weights beside it."""

import json
import logging
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_bert_flow.artifacts import write_atomically
from keras_bert_flow.config import PipelineConfig
from keras_bert_flow.conversion.model_directory import load_classifier, save_model_directory
from keras_bert_flow.data.tasks import (
    TaskInputs,
    encode_texts,
    predict_probabilities,
    read_tokenizer,
    task_dataset,
)
from keras_bert_flow.keys import finetuning_key, folder_digest
from keras_bert_flow.models.backbone import BertBackbone
from keras_bert_flow.models.classifier import BertTextClassifier
from keras_bert_flow.records.publish import Contents, publish
from keras_bert_flow.tasks.tables import label_ids, label_names, read_table
from keras_bert_flow.training.checkpoints import Checkpoints
from keras_bert_flow.training.identity import finetuning_identity, list_changes
from keras_bert_flow.training.loop import Borders, train
from keras_bert_flow.training.optimizers import make_guarded_optimizer
from keras_bert_flow.training.precision import arithmetic, seed_everything
from keras_bert_flow.training.schedules import WarmupDecay

PRETRAINED, RANDOM = "pretrained", "random"
RUN_FILE = "run.json"
LOGS_A_RUN = 20
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TaskData:
    """A task's two tables, encoded."""

    names: tuple[str, ...]
    train: TaskInputs
    train_labels: np.ndarray
    dev: TaskInputs
    dev_labels: np.ndarray


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
    data = read_task(config, tokenizer)

    def build(work: Path) -> Contents:
        classifier = None
        for start, seed in list_runs(config):
            folder = work / start / f"seed-{seed}"
            if _is_finished(folder, identity):
                shutil.rmtree(folder / "checkpoints", ignore_errors=True)  # a kill may have come before
                continue
            classifier = _start_run(classifier, model, data.names, config, start, seed)
            seconds = _train_run(
                classifier, data, config, folder, identity | {"start": start, "seed": seed}, report, callbacks
            )
            save_model_directory(classifier, folder / "model", model / "vocab.txt", tokenizer.cased)
            run = {"start": start, "seed": seed, "seconds": round(seconds, 1), "identity": identity}
            write_atomically(folder / RUN_FILE, json.dumps(run).encode())
            shutil.rmtree(folder / "checkpoints", ignore_errors=True)
        settings = config.model_dump(mode="json", include={"task", "finetuning", "backend"})
        return Contents(settings, {"model": folder_digest(model)})

    with arithmetic(config.finetuning.precision):
        return publish(output, "finetuning", key, build, resumable=True)


def list_runs(config: PipelineConfig) -> Iterator[tuple[str, int]]:
    """Yield (start, seed) of every run."""
    for start in (PRETRAINED, RANDOM) if config.finetuning.compare_random else (PRETRAINED,):
        for seed in config.finetuning.seeds:
            yield start, seed


def read_task(config: PipelineConfig, tokenizer) -> TaskData:
    """Read and encode both tables; the names of the classes are those of the training table."""
    train_table = read_table(
        config.task.train, **config.task.columns, max_examples=config.finetuning.max_train_examples
    )
    dev_table = read_table(config.task.dev, **config.task.columns)
    names = label_names(train_table)
    length = config.finetuning.sequence_length
    return TaskData(
        names=names,
        train=encode_texts(tokenizer, train_table.texts, train_table.text_pairs, length),
        train_labels=label_ids(train_table, names),
        dev=encode_texts(tokenizer, dev_table.texts, dev_table.text_pairs, length),
        dev_labels=label_ids(dev_table, names),
    )


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


def _start_run(classifier, model: Path, names, config: PipelineConfig, start: str, seed: int) -> BertTextClassifier:
    """Return a compiled classifier in its first state; one that is compiled already takes the state of a new one."""
    seed_everything(seed)
    rates = dict.fromkeys(("dropout_rate", "attention_dropout_rate"), config.finetuning.dropout_rate)
    fresh = load_classifier(model, labels=names, **rates)
    if start == RANDOM:
        backbone = BertBackbone.from_config(fresh.backbone.get_config())
        fresh = BertTextClassifier(backbone, len(names), dropout_rate=rates["dropout_rate"], labels=names)
    if classifier is None:
        return fresh
    for variable, first in zip(classifier.variables, fresh.variables, strict=True):
        variable.assign(first)
    return classifier


def _train_run(
    classifier, data: TaskData, config: PipelineConfig, folder: Path, identity: Mapping[str, Any], report, callbacks
) -> float:
    settings = config.finetuning
    folder.mkdir(parents=True, exist_ok=True)
    steps_an_epoch = -(-len(data.train) // settings.batch_size)
    total_steps = settings.epochs * steps_an_epoch
    _compile(classifier, config, total_steps)

    def evaluate(until_stopped) -> dict[str, float]:
        probabilities = predict_probabilities(classifier, data.dev, settings.batch_size, until_stopped)
        chosen = probabilities[np.arange(len(data.dev)), data.dev_labels]
        return {
            "dev_loss": float(-np.log(np.maximum(chosen, np.finfo(np.float32).tiny)).mean()),
            "dev_accuracy": float((probabilities.argmax(axis=-1) == data.dev_labels).mean()),
        }

    return train(
        classifier,
        lambda step: task_dataset(data.train, data.train_labels, settings.batch_size, identity["seed"], step),
        Borders(total_steps, max(1, total_steps // LOGS_A_RUN), steps_an_epoch, steps_an_epoch),
        folder,
        Checkpoints(folder / "checkpoints", identity, keep=1),
        evaluate,
        settings.batch_size * data.train.token_ids.shape[1],
        lambda line: report({"run": str(folder.relative_to(folder.parents[1]))} | dict(line)),
        callbacks=callbacks,
    )


def _compile(classifier, config: PipelineConfig, total_steps: int) -> None:
    """Compile once; a classifier that is compiled has its optimizer set back instead."""
    settings = config.finetuning
    if classifier.compiled:
        classifier.optimizer.reset()
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
    classifier.compile(optimizer=optimizer, auto_scale_loss=False)  # the guard scales it
