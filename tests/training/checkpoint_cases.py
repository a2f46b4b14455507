"""A model of which checkpoints are made, and what tells one of them from another."""

import keras

from keras_bert_flow.backends.runtime import seed_everything
from keras_bert_flow.training.optimizers.adam import adamw
from keras_bert_flow.training.pretraining.pretrainers import make_pretrainer
from tests.oracles.tiny_records import make_tiny_config

IDENTITY = {"seed": 1, "model": {"hidden_dim": 16, "act": "gelu"}}


def make_model(seed=1, **shape):
    seed_everything(seed)
    model = make_pretrainer(make_tiny_config(shape).model, 50)
    model.compile(optimizer=adamw(0.01, 100, 2))
    model.optimizer.build(model.trainable_variables)
    return model


def bias_of(model):
    return keras.ops.convert_to_numpy(model.get_layer("nsp").bias.value).tolist()


def folder_of(tmp_path, step):
    return tmp_path / "checkpoints" / f"step-{step:08d}"
