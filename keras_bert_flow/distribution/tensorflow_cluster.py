"""Distributed training on TensorFlow with `tf.distribute`: in one process, in several, or on a TPU.

Each replica has its own rows and losses. Keras 3.15 would average the means of the replicas, and clip each gradient
before summing them. Here a loss is divided by the total weight of all replicas, and the gradients are summed before
they reach the optimizer.
"""

import json
import os
import re
from typing import Any

import keras
import tensorflow as tf

from keras_bert_flow.backends.batches import without_autotuning
from keras_bert_flow.backends.optimizers import dense_gradients
from keras_bert_flow.backends.values import read_variable
from keras_bert_flow.data.pretraining import take_part
from keras_bert_flow.distribution.cluster import STEPS_BETWEEN_ASKS, Cluster, replica_seed, seed_variables
from keras_bert_flow.models.defaults import TokenLoss

_LOSSES = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
)


def count_processes() -> int:
    """Return the number of workers in TF_CONFIG; 1 if it names none."""
    workers = json.loads(os.environ.get("TF_CONFIG") or "{}").get("cluster", {})
    return len(workers.get("worker", ())) + len(workers.get("chief", ())) or 1


def list_devices() -> list[str]:
    """Return the names of the local devices that a strategy uses: GPUs, else CPUs."""
    devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
    return [device.name for device in devices]


def make_strategy(devices: int, is_tpu: bool) -> tf.distribute.Strategy:
    """Return the distribution strategy for the processes of TF_CONFIG, or for the first `devices` of this process.

    Args:
        is_tpu: whether to take the TPU in TPU_NAME, or that of this machine, instead.
    Raises:
        ValueError: there is no TPU.
    """
    if not is_tpu and count_processes() > 1:
        return tf.distribute.MultiWorkerMirroredStrategy()
    if not is_tpu:
        return tf.distribute.MirroredStrategy(list_devices()[:devices])
    name = os.environ.get("TPU_NAME", "local")
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=name)
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        return tf.distribute.TPUStrategy(resolver)
    except (ValueError, RuntimeError, tf.errors.OpError) as error:
        raise ValueError(
            f"`distribution.kind: tpu` must find a TPU. Received: TPU_NAME={name}: {str(error).splitlines()[0]} "
            "Set TPU_NAME, or choose another kind."
        ) from None


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class ReplicatedLoss(TokenLoss):
    """A replica's share of the global mean loss: its weighted sum, divided by the total weight of all replicas."""

    def __init__(self, name="replicated_loss"):
        super().__init__(reduction="sum", name=name)

    def __call__(self, y_true, y_pred, sample_weight=None):
        weights = tf.cast(tf.ones(tf.shape(y_true)) if sample_weight is None else sample_weight, "float32")
        total = tf.reduce_sum(weights)
        context = tf.distribute.get_replica_context()
        if context is not None:  # it is None while Keras infers shapes
            total = context.all_reduce(tf.distribute.ReduceOp.SUM, total)
        return super().__call__(y_true, y_pred, tf.math.divide_no_nan(weights, total))

    def get_config(self):
        return {"name": self.name}


class TensorFlowCluster(Cluster):
    """The replicas of a TensorFlow distribution strategy."""

    skips_steps = False
    make_loss = ReplicatedLoss

    def __init__(self, strategy: tf.distribute.Strategy):
        self.strategy = strategy
        resolver = strategy.cluster_resolver
        self.processes = count_processes()
        self.rank = 0
        if self.processes > 1:
            workers = resolver.cluster_spec().as_dict()
            self.rank = resolver.task_id + (len(workers.get("chief", ())) if resolver.task_type == "worker" else 0)
            self.losing_errors = dict.fromkeys(_LOSSES, re.compile(""))
        self.devices = strategy.num_replicas_in_sync
        self.ask_every_steps = 1 if self.processes == 1 else STEPS_BETWEEN_ASKS
        self._spec = None
        self._predict: Any = None  # a model and its compiled function

    def prepare(self, model):
        """Sum gradients over the replicas before the optimizer applies them, so that it clips the summed gradient."""
        apply = model.optimizer.apply

        def apply_sum(grads, trainable_variables=None):
            context = tf.distribute.get_replica_context()
            return apply(context.all_reduce(tf.distribute.ReduceOp.SUM, dense_gradients(grads)), trainable_variables)

        model.optimizer.apply = apply_sum
        inner = getattr(model.optimizer, "inner_optimizer", model.optimizer)
        inner._all_reduce_sum_gradients = lambda pairs: pairs  # Keras would sum them a second time
        if self.processes > 1:  # Keras averages the outputs of a step along an axis, which a scalar lacks
            train_step = model.train_step
            model.train_step = lambda data: {name: value[None] for name, value in train_step(data).items()}

    def spread_seeds(self, model):
        local = self.devices // self.processes
        for variable in seed_variables(model):
            first = read_variable(variable)
            for number, part in enumerate(self.strategy.experimental_local_results(variable.value)):
                part.assign(replica_seed(first, self.rank * local + number))

    def feed(self, model, dataset):
        local = self.devices // self.processes
        if self._spec is None:
            first = take_part(next(iter(dataset)), 0, local)
            self._spec = tf.nest.map_structure(lambda values: tf.TensorSpec(values.shape, values.dtype), first)
            with self.scope():
                model._symbolic_build(data_batch=first)
            # Keras would reduce a batch over the replicas to learn its shape, which fails across processes.
            model._maybe_symbolic_build = lambda *_, **__: None

        def read_parts():
            for batch in dataset:
                for part in range(local):
                    yield take_part(batch, part, local)

        return self.strategy.distribute_datasets_from_function(
            lambda _: without_autotuning(tf.data.Dataset.from_generator(read_parts, output_signature=self._spec))
        )

    def predict(self, model, x):
        """Predict on the first local replica: under a strategy Keras repeats the rows on every replica."""
        if self._predict is None or self._predict[0] is not model:
            self._predict = model, tf.function(lambda x: model(x, training=False))
        outputs = self._predict[1]({name: tf.convert_to_tensor(values) for name, values in x.items()})
        return {name: output.numpy() for name, output in outputs.items()}

    def sum(self, values):
        return values if self.processes == 1 else self._add_up(tf.constant(values)).numpy()

    @tf.function
    def _add_up(self, values):
        local = self.devices // self.processes

        def add():
            context = tf.distribute.get_replica_context()
            is_first = context.replica_id_in_sync_group % local == 0
            return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.where(is_first, values, tf.zeros_like(values)))

        return self.strategy.experimental_local_results(self.strategy.run(add))[0]
