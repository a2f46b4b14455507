"""Distributed training on JAX with `keras.distribution`, and how weights are sharded.

A batch is one sharded array and a step is one program, so losses, gradients, metrics and dropout masks equal those of a
single device. Nothing has to be reweighted.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import keras
import numpy as np
from jax.experimental import multihost_utils

from keras_bert_flow.distribution.cluster import STEPS_BETWEEN_ASKS, Cluster
from keras_bert_flow.layers.shape import EncoderShape
from keras_bert_flow.models.families.family import BLOCK, MODEL_AXIS

# Layout map of model parallelism: how each weight of an encoder is sharded over the devices of one copy.

BATCH, MODEL = "batch", MODEL_AXIS  # axes of the mesh


def make_layout(shape: EncoderShape, sharding: Mapping[str, tuple], count: int) -> dict[str, Sequence]:
    """Return a layout map: pattern of the full path → mesh axes of a sharded weight.

    The other weights, all small, are replicated. The vocabulary is sharded together with its output biases. A
    vocabulary that does not divide evenly, such as 30,522 pieces over 4 devices, is sharded along the hidden dimension
    instead.

    Args:
        sharding: of the weights of a block; see `models.families.family.Family`.
        count: number of devices of one copy.
    Raises:
        ValueError: the heads or the feed-forward width do not divide evenly.
    """
    for name, size in (("num_heads", shape.num_heads), ("intermediate_dim", shape.intermediate_dim)):
        if size % count:
            raise ValueError(
                f"`distribution.model_parallel` must divide the model's {name}. Received: model_parallel={count}, "
                f"{name}={size}. Choose a divisor of both num_heads and intermediate_dim."
            )
    layout: dict[str, Sequence] = {rf"(.*/)?{BLOCK}\d+/{weight}": axes for weight, axes in sharding.items()}
    table = r"(.*/)?token_embedding/embeddings"
    if shape.vocabulary_size % count:
        return layout | {table: (None, MODEL)}
    return layout | {table: (MODEL, None), r"(.*/)?mlm/bias": (MODEL,)}


_LOSS = re.compile(r"gloo|nccl|UNAVAILABLE|DEADLINE_EXCEEDED|coordination|connection", re.IGNORECASE)


class JaxCluster(Cluster):
    """The JAX devices of a run.

    Args:
        devices: number of devices, in all processes.
        layout: see `make_layout`; None if each device has its own copy of the model.
        model_parallel: number of devices of one copy.
    """

    aborts = True
    losing_errors = {jax.errors.JaxRuntimeError: _LOSS}

    def __init__(self, devices: int, layout=None, model_parallel: int = 1):
        self.processes, self.rank = jax.process_count(), jax.process_index()
        self.devices = devices // model_parallel
        self.ask_every_steps = 1 if self.processes == 1 else STEPS_BETWEEN_ASKS
        self._predict: Any = None  # a model and its compiled function
        names = keras.distribution.list_devices()[:devices]
        if layout is None:
            self.strategy = keras.distribution.DataParallel(devices=names, auto_shard_dataset=False)
            return
        mesh = keras.distribution.DeviceMesh((self.devices, model_parallel), [BATCH, MODEL], names)
        layout_map = keras.distribution.LayoutMap(mesh)
        for path, axes in layout.items():
            layout_map[path] = axes
        self.strategy = keras.distribution.ModelParallel(
            layout_map=layout_map, batch_dim_name=BATCH, auto_shard_dataset=False
        )

    def predict(self, model, x):
        if self._predict is None or self._predict[0] is not model:
            # Compiled here for sharded inputs, which Keras supports only on one device of one process.
            def predict(trainable, non_trainable, x):
                return model.stateless_call(trainable, non_trainable, x, training=False)[0]

            self._predict = model, jax.jit(predict, out_shardings=self._find_layout(1))
        groups = (model.trainable_variables, model.non_trainable_variables)
        state = [[variable.value for variable in group] for group in groups]
        sharded = {
            name: jax.make_array_from_process_local_data(self._find_layout(values.ndim), values)
            for name, values in x.items()
        }
        found = {}
        for name, output in self._predict[1](*state, sharded).items():
            # The rows on this process, in order, each once.
            shards = {shard.index[0].start or 0: shard.data for shard in output.addressable_shards}
            found[name] = np.concatenate([np.asarray(shards[start]) for start in sorted(shards)])
        return found

    def sum(self, values):
        if self.processes == 1:
            return values
        # As bytes: JAX would convert float64 to float32.
        parts = multihost_utils.process_allgather(np.ascontiguousarray(values).view(np.uint8))
        return np.sum(np.asarray(parts).view(np.float64).reshape(self.processes, *values.shape), axis=0)

    def _find_layout(self, dimensions: int):
        return self.strategy.get_data_layout((None,) * dimensions).backend_layout
