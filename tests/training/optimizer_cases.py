"""Weights for optimizers to move, and which of them are matrices or decayed."""

from contextlib import ExitStack
from functools import partial

import keras
import numpy as np

from keras_bert_flow.training.optimizers.adam import make_optimizer as make_any_optimizer

DECAY = 0.1
SHAPES = {
    "token_embedding/embeddings": (6, 3),
    "encoder_block_0/kernel": (4, 3),
    "encoder_block_0/bias": (3,),
    "encoder_block_1/kernel": (3, 4),
    "encoder_block_1/gamma": (3,),
    "classifier/kernel": (3, 2),
    "classifier/beta": (2,),
}
HEADS = 2
# Paths of matrices; of three in one the heads.
MUON = {
    "matrix_rate_factor": 3.0,
    "matrices": dict.fromkeys([f"encoder_block_{index}/kernel" for index in range(4)], 0)
    | {"encoder_block_4/query_key_value/kernel": HEADS},
}
make_optimizer = partial(make_any_optimizer, muon_options=MUON)
DECAYED = [
    "embeddings/position_embedding",
    "embeddings/segment_embedding",
    "encoder_block_0/attention/output/kernel",
    "encoder_block_0/attention/query_key_value/kernel",
    "encoder_block_0/intermediate/kernel",
    "encoder_block_0/output/kernel",
    "mlm_transform/dense/kernel",
    "nsp/kernel",
    "pooler/dense/kernel",
    "token_embedding/embeddings",
]


def make_variables(values):
    variables = []
    for path, value in values.items():
        *scopes, name = path.split("/")
        with ExitStack() as stack:
            for scope in scopes:
                stack.enter_context(keras.name_scope(scope))
            variables.append(keras.Variable(value, name=name))
    return variables


def values_of(variables):
    return [np.array(keras.ops.convert_to_numpy(variable.value)) for variable in variables]
