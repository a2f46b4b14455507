"""Export to SavedModel, for TensorFlow Serving, and to LiteRT, for small devices."""

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_bert_flow.export.format import ExportFormat, Inputs, Run
from keras_bert_flow.results.artifacts import removed_on_leaving

if TYPE_CHECKING:
    import tensorflow as tf

    from keras_bert_flow.export.served_model import ServedModel


SIGNATURE = "serving_default"
PLATFORMS = ("cpu", "cuda", "tpu")  # that a JAX function can be compiled for when it is loaded


class SavedModel(ExportFormat):
    """SavedModel: a folder with the graph and the variables.

    Its signature takes the inputs by name; of a model with `strings`, further ones take texts.
    """

    title = "SavedModel"
    file = "saved_model"
    runtime = "tensorflow"
    packages = {"tensorflow": ("tensorflow",), "jax": ("tensorflow",)}
    refusals = {
        "torch": "torch_xla 2.9, the last, by which Keras writes it there, does not load beside PyTorch 2.13: "
        "undefined symbol `torch::autograd::deleteNode`"
    }
    has_int8 = False
    has_strings = True

    def write(self, model: "ServedModel", path: Path, int8: bool) -> None:
        import tensorflow as tf

        function, specs, variables = make_function(model)
        module = tf.Module()
        module.weights = variables
        named = tf.function(lambda **inputs: function(inputs), autograph=False)
        signatures = {SIGNATURE: named.get_concrete_function(**specs)}
        if model.strings is not None:
            from keras_bert_flow.export.tensorflow_strings import add_strings

            signatures |= add_strings(module, model.strings, function, model.inputs)
        module.signatures_ = signatures
        tf.saved_model.save(module, path, signatures=signatures)

    def load(self, path: Path, threads: int | None = None) -> Run:
        import tensorflow as tf

        loaded = tf.saved_model.load(path)
        signature = loaded.signatures[SIGNATURE]

        def run(inputs: Inputs, keep=loaded):  # the variables live only as long as `loaded`
            found = signature(**{name: tf.constant(ids) for name, ids in inputs.items()})
            return {name: value.numpy() for name, value in found.items()}

        return run


class LiteRT(ExportFormat):
    """LiteRT (TensorFlow Lite): a single file that includes the weights and uses only built-in operations."""

    title = "LiteRT"
    file = "model.tflite"
    runtime = "ai_edge_litert"
    packages = {"tensorflow": ("tensorflow",)}
    refusals = {
        "jax": "the converter of a SavedModel of jax says that `vhlo.dynamic_gather_v1` is not part of its support yet",
        "torch": "litert-torch 0.9, by which Keras writes it there, depends on torch<2.12.0",
    }

    def write(self, model: "ServedModel", path: Path, int8: bool) -> None:
        import tensorflow as tf

        with tempfile.TemporaryDirectory(prefix="kbf-") as folder, removed_on_leaving(folder):
            SavedModel().write(model, Path(folder) / "model", int8=False)
            converter = tf.lite.TFLiteConverter.from_saved_model(f"{folder}/model")
            if int8:
                converter.optimizations = [tf.lite.Optimize.DEFAULT]
            path.write_bytes(converter.convert())

    def load(self, path: Path, threads: int | None = None) -> Run:
        from ai_edge_litert.interpreter import Interpreter

        interpreter = Interpreter(model_path=str(path), num_threads=threads)
        runner = interpreter.get_signature_runner()

        def run(inputs: Inputs, keep=interpreter):
            return {name: value.copy() for name, value in runner(**inputs).items()}

        return run


def make_function(model: "ServedModel") -> tuple[Callable, dict[str, "tf.TensorSpec"], list["tf.Variable"]]:
    """Return a `tf.function` of the inputs by name, its input specifications, and the variables that it reads.

    It takes one dict of int64 tensors and returns a dict of float32 tensors. Models are of TensorFlow or JAX.
    """
    import tensorflow as tf

    from keras_bert_flow.backends.values import assume_packed_rows

    compute: Callable = partial(model.model, training=False)
    variables = [variable.value for variable in model.model.variables]
    if model.backend == "jax":
        compute, variables = _convert_from_jax(model)

    @tf.function(autograph=False)
    def function(inputs):
        with assume_packed_rows(False):  # `attention_mask` is 0 or 1
            return compute({name: tf.cast(inputs[name], tf.int32) for name in model.inputs})

    specs = {name: tf.TensorSpec([None] * len(model.axes), tf.int64, name=name) for name in model.inputs}
    return function, specs, variables


def _convert_from_jax(model: "ServedModel") -> tuple[Callable, list["tf.Variable"]]:
    import tensorflow as tf
    from jax.experimental import jax2tf

    keras_model = model.model

    def compute(trained: Any, fixed: Any, inputs: Any):
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
