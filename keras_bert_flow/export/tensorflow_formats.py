"""Export to SavedModel, for TensorFlow Serving, and to LiteRT, for small devices."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from keras_bert_flow.export.format import ExportFormat, Inputs, Run
from keras_bert_flow.results.artifacts import removed_on_leaving

if TYPE_CHECKING:
    from keras_bert_flow.export.served_model import ServedModel


SIGNATURE = "serving_default"


class SavedModel(ExportFormat):
    """SavedModel: a folder with the graph and the variables."""

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
        write_saved_model(model, path)

    def load(self, path: Path, threads: int | None = None) -> Run:
        import tensorflow as tf

        loaded = tf.saved_model.load(path)
        signature = loaded.signatures[SIGNATURE]

        def run(inputs: Inputs, keep=loaded):  # the variables live only as long as `loaded`
            found = signature(**{name: tf.constant(ids) for name, ids in inputs.items()})
            return {name: value.numpy() for name, value in found.items()}

        return run


def write_saved_model(model: "ServedModel", path: Path) -> None:
    """Write a model with a signature that takes the inputs by name, and signatures for texts if it has `strings`."""
    import tensorflow as tf

    from keras_bert_flow.export.tensorflow_function import make_function

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


# LiteRT export (formerly TensorFlow Lite), for phones and other small devices.


class LiteRT(ExportFormat):
    """LiteRT: a single file that includes the weights and uses only built-in operations."""

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
            write_saved_model(model, Path(folder) / "model")
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
