"""Train new models for some steps on the backend of this process; as a command, print their losses as JSON."""

import json
import sys
from itertools import islice

import numpy as np

from keras_bert_flow.config.pretraining import ModelConfig
from keras_bert_flow.data.pretraining import pretraining_dataset
from keras_bert_flow.data.pretraining_records import PretrainingRecords
from keras_bert_flow.models.backbone import Backbone
from keras_bert_flow.models.pretraining.distiller import Distiller
from keras_bert_flow.text.objectives.mlm import Distillation
from keras_bert_flow.training.optimizers.adam import adamw
from keras_bert_flow.training.pretraining.pretrainers import make_pretrainer

SHAPE = {
    "num_layers": 2,
    "hidden_dim": 32,
    "num_heads": 2,
    "intermediate_dim": 64,
    "max_positions": 16,
    "dropout_rate": 0.0,
    "attention_dropout_rate": 0.0,
}


LAYERS = {"soft_target_weight": 0.0, "masked_lm_weight": 0.0, "hidden_state_weight": 0.0} | {
    "attention_score_weight": 1.0,
    "layer_state_weight": 0.5,
}


def randomise(model):
    """Give the matrices that are trained the same values on every backend, in whose order they come alike."""
    rng = np.random.default_rng(3)
    for weight in model.trainable_variables:
        if len(weight.shape) > 1:
            weight.assign(rng.normal(0, 0.1, weight.shape))


def train_steps(records, family, steps, is_teacher=False):
    """Return the loss of each step of a new model, or of a student that is compared with its layers."""
    records = PretrainingRecords(records)
    shape, size = ModelConfig(family=family, **SHAPE), records.manifest.config["vocabulary_size"]
    model = make_pretrainer(shape, size, records.objective)
    randomise(model)
    objective = None
    if is_teacher:
        narrow = SHAPE | {"num_layers": 1, "hidden_dim": 16}
        student = Backbone(family, use_pooler=False, vocabulary_size=size, **narrow)
        model, objective = Distiller(student, model.backbone, **LAYERS), Distillation(False, False, 1.0, 0.5, False)
        randomise(model)
    model.compile(optimizer=adamw(learning_rate=0.003, total_steps=steps, warmup_steps=5, clip_norm=1.0))
    losses = []
    for x, y, weights in islice(pretraining_dataset(records, 8, masking="dynamic", objective=objective), steps):
        losses.append(float(model.train_on_batch(x, y, sample_weight=weights, return_dict=True)["loss"]))
        model.reset_metrics()
    return losses


def train_all(families, folder, steps):
    """Return the losses of each objective, whose records are in the folder by its name; `layers` is a distillation."""
    return {
        objective: train_steps(f"{folder}/{objective}", family, steps, objective == "layers")
        for objective, family in families.items()
    }


if __name__ == "__main__":
    families, folder, steps = json.loads(sys.argv[1])
    print(json.dumps(train_all(families, folder, steps)))
