"""ONNX export, for onnxruntime: written by tf2onnx on TensorFlow, and by PyTorch's own exporter on PyTorch."""

import logging
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from keras_bert_flow.export.format import ExportFormat, Run

if TYPE_CHECKING:  # a request is checked before Keras is imported
    from keras_bert_flow.export.served_model import ServedModel

OPSET = 18
EXAMPLE_SIZE = 3  # of each axis of PyTorch's example; 1 would be treated as constant


class Onnx(ExportFormat):
    """ONNX: a single file that includes the weights."""

    title = "ONNX"
    file = "model.onnx"
    runtime = "onnxruntime"
    packages = {"torch": ("onnx", "onnxscript"), "tensorflow": ("onnx", "tf2onnx")}
    oldest = {"torch": "2.10"}  # 2.6 to 2.9 fail on a dynamic length, each in another way
    refusals = {"jax": "jax2onnx, by which Keras writes it there, would bring flax, equinox and some 30 other packages"}

    def write(self, model: "ServedModel", path: Path, int8: bool) -> None:
        written = path.with_suffix(".float32") if int8 else path
        (_write_from_torch if model.backend == "torch" else _write_from_tensorflow)(model, written)
        if int8:
            from onnxruntime.quantization import QuantType, quantize_dynamic

            # The kernels of dense layers, with one scale per column; attention products stay float32.
            quantize_dynamic(
                written, path, op_types_to_quantize=["MatMul"], per_channel=True, weight_type=QuantType.QInt8
            )
            written.unlink()

    def load(self, path: Path, threads: int | None = None) -> Run:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads or 0
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        return lambda inputs: dict(zip(names, session.run(names, dict(inputs)), strict=True))


def _write_from_torch(model: "ServedModel", path: Path) -> None:
    """Write a model with PyTorch's exporter, through `torch.export`.

    Keras' own `model.export` fixes the shapes or falls back on the TorchScript exporter, which cannot write Keras'
    layer norm for a dynamic length.
    """
    import torch

    from keras_bert_flow.backends.values import assume_packed_rows

    inputs, outputs = model.inputs, model.outputs

    class Positional(torch.nn.Module):
        """Takes int64 inputs as positional arguments, in the order of their names, and returns a tuple of outputs."""

        def __init__(self):
            super().__init__()
            self.model = model.model
            self.eval()

        def forward(self, *ids):
            given = {name: value.to(torch.int32) for name, value in zip(inputs, ids, strict=True)}
            found = self.model(given, training=False)
            return tuple(found[name] for name in outputs)

    sizes = {axis: torch.export.Dim(axis, max=most) for axis, most in model.axes.items()}
    shapes = dict(enumerate(sizes.values()))
    # One tensor shared by all inputs would be exported as one input.
    example = tuple(torch.ones([EXAMPLE_SIZE] * len(sizes), dtype=torch.int64) for _ in inputs)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it warns that torchvision is missing
    # PyTorch warns about Keras' modules; `attention_mask` is 0 or 1.
    with warnings.catch_warnings(action="ignore"), assume_packed_rows(False):
        torch.onnx.export(
            Positional(),
            example,
            path,
            input_names=list(inputs),
            output_names=list(outputs),
            dynamic_shapes=((shapes,) * len(inputs),),
            opset_version=OPSET,
            dynamo=True,
            external_data=False,
            verbose=False,
        )


def _write_from_tensorflow(model: "ServedModel", path: Path) -> None:
    """Write a model as a TensorFlow function, with tf2onnx."""
    import onnx
    import tf2onnx

    from keras_bert_flow.export.tensorflow_formats import make_function

    function, specs, _ = make_function(model)
    logging.getLogger("tf2onnx").setLevel(logging.ERROR)
    proto, _ = tf2onnx.convert.from_function(
        function, input_signature=[specs], opset=OPSET, custom_op_handlers={"Erfc": (_write_erfc, [])}
    )
    for value in proto.graph.input:  # the model's names of the dynamic axes, in place of tf2onnx's numbers
        for axis, size in zip(value.type.tensor_type.shape.dim, model.axes, strict=True):
            axis.dim_param = size
    onnx.save(proto, path)


def _write_erfc(context, node, name, _) -> None:
    """Write `Erfc`, which TensorFlow's exact GELU uses and ONNX lacks, as 1 - erf."""
    (output,), shapes, dtypes = node.output, node.output_shapes, node.output_dtypes
    erf = context.make_node("Erf", node.input)
    one = context.make_const(f"{name}_one", np.ones((), np.float32))
    context.remove_node(name)
    context.make_node("Sub", [one.output[0], erf.output[0]], outputs=[output], name=name, shapes=shapes, dtypes=dtypes)
