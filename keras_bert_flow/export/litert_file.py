"""LiteRT export (formerly TensorFlow Lite), for phones and other small devices."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from keras_bert_flow.artifacts import removed_on_leaving
from keras_bert_flow.export.format import ExportFormat, Inputs, Run
from keras_bert_flow.export.saved_model import write_saved_model

if TYPE_CHECKING:  # a request is checked before Keras is imported
    from keras_bert_flow.export.served_model import ServedModel


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
