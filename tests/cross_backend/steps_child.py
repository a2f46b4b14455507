"""Train new models for some steps on the backend of this process; as a command, print their losses as JSON."""

import json
import sys
from itertools import islice

import numpy as np

from keras_bert_flow.config.pretraining import ModelConfig
from keras_bert_flow.data.pretraining import pretraining_dataset
from keras_bert_flow.data.pretraining_records import PretrainingRecords
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


def train_steps(records, family, steps):
    records = PretrainingRecords(records)
    shape = ModelConfig(family=family, **SHAPE)
    model = make_pretrainer(shape, records.manifest.config["vocabulary_size"], records.objective)
    rng = np.random.default_rng(3)
    for weight in model.trainable_variables:  # the same on every backend, in whose order they come alike
        if len(weight.shape) > 1:
            weight.assign(rng.normal(0, 0.1, weight.shape))
    model.compile(optimizer=adamw(learning_rate=0.003, total_steps=steps, warmup_steps=5, clip_norm=1.0))
    losses = []
    for x, y, weights in islice(pretraining_dataset(records, 8, masking="dynamic"), steps):
        losses.append(float(model.train_on_batch(x, y, sample_weight=weights, return_dict=True)["loss"]))
        model.reset_metrics()
    return losses


def train_all(families, folder, steps):
    """Return the losses of each objective, whose records are in the folder by its name."""
    return {objective: train_steps(f"{folder}/{objective}", family, steps) for objective, family in families.items()}


if __name__ == "__main__":
    families, folder, steps = json.loads(sys.argv[1])
    print(json.dumps(train_all(families, folder, steps)))
