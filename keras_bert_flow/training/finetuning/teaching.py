"""What a fine-tuning learns from a teacher of the same task: first its layers, then its predictions.

Source: Jiao et al. 2020 (TinyBERT), section 3.2; arXiv:1909.10351.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_bert_flow.backends.runtime import seed_everything
from keras_bert_flow.backends.values import read_variable
from keras_bert_flow.config.finetuning import FinetuningConfig
from keras_bert_flow.conversion.model_directory import load_for_finetuning
from keras_bert_flow.data.tasks import ONLY_OUTPUT, TaskBatches, predict_features, read_batches
from keras_bert_flow.files.inputs import InputStates
from keras_bert_flow.models.backbone import Backbone
from keras_bert_flow.models.pretraining.distiller import Distiller
from keras_bert_flow.tasks.core.task import Features, Task
from keras_bert_flow.training.loop.checkpoints import Checkpoints
from keras_bert_flow.training.loop.train import Intervals, StepSize, train

LAYERS = "layers"  # folder of a run for the epochs that compare layers
LAYERS_ALONE: dict[str, Any] = {
    "soft_target_weight": 0.0,
    "masked_lm_weight": 0.0,
    "hidden_state_weight": 0.0,
    "attention_score_weight": 1.0,
    "layer_state_weight": 1.0,
}


def load_teacher(folder: Path, task: Task) -> Any:
    """Load the teacher of a task, without dropout.

    Raises:
        FileNotFoundError, ValueError: the model is missing or damaged, is of another kind, or has other classes.
    """
    still: dict[str, Any] = {"dropout_rate": 0.0, "attention_dropout_rate": 0.0}
    teacher, is_head_new = load_for_finetuning(task.kind, folder, labels=task.labels, **still | task.model_options)
    if is_head_new:
        raise ValueError(
            f"A teacher must be fine-tuned on the task of its student. Received: {folder}, without a head for "
            f"{task.kind.replace('_', ' ')}. Take a model that was fine-tuned on it."
        )
    return teacher


def take_predictions(features: Features, teacher: Any, max_widths: int) -> Features:
    """Return rows with the probabilities of a teacher, float32, (rows, classes), in place of the class ids.

    The cross-entropy against them is the loss of predictions at temperature 1, summed over the classes. The authors'
    code averages over the classes. Numbers of a regression are unchanged: there it is the squared error of the labels,
    as in their code.
    """
    if features.labels[ONLY_OUTPUT].dtype.kind == "f":
        return features
    logits = predict_features(teacher, features, max_widths)[ONLY_OUTPUT].astype(np.float64)
    shares = np.exp(logits - logits.max(axis=-1, keepdims=True))
    shares = (shares / shares.sum(axis=-1, keepdims=True)).astype(np.float32)
    return replace(features, labels={ONLY_OUTPUT: shares})


def match_layers(
    student: Backbone,
    teacher: Backbone,
    features: Features,
    settings: FinetuningConfig,
    make_batches: Callable[[Features], TaskBatches],
    make_optimizer: Callable[[Any, int], keras.optimizers.Optimizer],
    folder: Path,
    seed: int,
    identity: Mapping[str, Any],
    inputs: InputStates,
    report: Callable[[Mapping[str, Any]], None],
    callbacks: Sequence[keras.callbacks.Callback],
    logs: int,
) -> None:
    """Train an encoder for `layer_epochs` on the attention scores and hidden states of a teacher.

    A killed run goes on from its newest checkpoint, which holds the projection too; a finished one is read from it.

    Args:
        student: gets the weights; its pooler, if any, stays.
        make_batches: returns the batches of rows with labels.
        make_optimizer: returns the optimizer for a model and a number of steps.
        folder: of `log.jsonl` and the checkpoints.
        seed: of the projection and the dropout.
        identity: of the run that this is a part of.
        logs: number of lines of the log.
    """
    seed_everything(seed)
    config = student.get_config() | {"use_pooler": False}
    pupil = type(student).from_config(config)
    ours = {weight.path: weight for weight in student.weights}
    for weight in pupil.weights:
        weight.assign(read_variable(ours[weight.path]))
    model = Distiller(pupil, teacher, **LAYERS_ALONE)
    labels = dict.fromkeys(model.output, np.zeros((len(features), 1), np.int32))
    batches = make_batches(replace(features, labels=labels))
    total_steps = settings.layer_epochs * batches.steps_per_epoch
    losses = model.make_losses_and_metrics()[0]
    parts = batches.accumulate_batches
    if parts > 1:
        losses = {
            name: type(loss).from_config(loss.get_config() | {"reduction": "sum"}) for name, loss in losses.items()
        }
    model.compile(
        optimizer=make_optimizer(model, total_steps),
        loss=losses,
        loss_weights=model.default_loss_weights,
        jit_compile=False if keras.backend.backend() == "torch" else "auto",
        auto_scale_loss=False,  # the guard does
    )
    folder.mkdir(parents=True, exist_ok=True)
    train(
        model,
        lambda step: read_batches(batches, step),
        Intervals(total_steps, max(1, total_steps // logs), total_steps, batches.steps_per_epoch),
        folder,
        Checkpoints(folder / "checkpoints", {**identity, "part": LAYERS}, keep=1, inputs=inputs),
        lambda until_stopped: {},
        StepSize(batches.mean_positions, parts),
        lambda line: report({"total_steps": total_steps} | dict(line)),
        callbacks=callbacks,
    )
    for weight in pupil.weights:
        ours[weight.path].assign(read_variable(weight))
