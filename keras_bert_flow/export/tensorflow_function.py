"""Convert a Keras model on TensorFlow or JAX to a TensorFlow function."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_bert_flow.backends.values import assume_packed_rows
from keras_bert_flow.export.served_model import ServedModel

PLATFORMS = ("cpu", "cuda", "tpu")  # that a JAX function can be compiled for when it is loaded


def make_function(model: ServedModel) -> tuple[Callable, dict[str, tf.TensorSpec], list[tf.Variable]]:
    """Return a `tf.function` of the inputs by name, its input specifications, and the variables that it reads.

    It takes one dict of int64 tensors and returns a dict of float32 tensors.
    """
    compute, variables = (_from_jax if model.backend == "jax" else _from_tensorflow)(model)

    @tf.function(autograph=False)
    def function(inputs):
        return compute({name: tf.cast(inputs[name], tf.int32) for name in model.inputs})

    specs = {name: tf.TensorSpec([None] * len(model.axes), tf.int64, name=name) for name in model.inputs}
    return function, specs, variables


def _from_tensorflow(model: ServedModel) -> tuple[Callable, list[tf.Variable]]:
    def compute(inputs: Any):
        with assume_packed_rows(False):  # `attention_mask` is 0 or 1
            return model.model(inputs, training=False)

    return compute, [variable.value for variable in model.model.variables]


def _from_jax(model: ServedModel) -> tuple[Callable, list[tf.Variable]]:
    from jax.experimental import jax2tf

    keras_model = model.model

    def compute(trained: Any, fixed: Any, inputs: Any):
        with assume_packed_rows(False):  # `attention_mask` is 0 or 1
            return keras_model.stateless_call(trained, fixed, inputs, training=False)[0]

    axes = f"({', '.join(model.axes)})"
    converted = jax2tf.convert(
        compute,
        with_gradient=False,
        polymorphic_shapes=[None, None, dict.fromkeys(model.inputs, axes)],
        # Without constraints a symbolic length cannot be compared with the number of positions.
        polymorphic_constraints=[f"{axis} <= {most}" for axis, most in model.axes.items() if most is not None],
        native_serialization_platforms=PLATFORMS,
    )
    trained, fixed = (
        [tf.Variable(variable.value) for variable in variables]
        for variables in (keras_model.trainable_variables, keras_model.non_trainable_variables)
    )
    return lambda inputs: converted(trained, fixed, inputs), [*trained, *fixed]
