"""Load exported models as their documentation says, without this package."""

import json
from pathlib import Path

import numpy as np


def load_onnx(path: Path):
    import onnxruntime

    session = onnxruntime.InferenceSession(path)
    names = [output.name for output in session.get_outputs()]
    return lambda inputs: dict(zip(names, session.run(None, inputs), strict=True))


def load_saved_model(path: Path):
    import tensorflow as tf

    loaded = tf.saved_model.load(path)

    def run(inputs):
        found = loaded.signatures["serving_default"](**{name: tf.constant(ids) for name, ids in inputs.items()})
        return {name: value.numpy() for name, value in found.items()}

    return run


def load_litert(path: Path):
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(path))
    return lambda inputs: {
        name: np.array(value) for name, value in interpreter.get_signature_runner()(**inputs).items()
    }


LOADERS = {"onnx": load_onnx, "saved_model": load_saved_model, "litert": load_litert}


def load_exported(folder: Path, format: str):
    """Return a function of inputs by name that returns outputs by name."""
    return LOADERS[format](folder / json.loads((folder / "export.json").read_text())["file"])
