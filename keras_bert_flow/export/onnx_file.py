"""ONNX export, for onnxruntime: written by tf2onnx on TensorFlow, and by PyTorch's own exporter on PyTorch."""

from pathlib import Path
from typing import TYPE_CHECKING

from keras_bert_flow.export.format import ExportFormat, Inputs, Run

if TYPE_CHECKING:  # a request is checked before Keras is imported
    from keras_bert_flow.export.served_model import ServedModel


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
        if model.backend == "torch":
            from keras_bert_flow.export.onnx_torch import write_onnx
        else:
            from keras_bert_flow.export.onnx_tensorflow import write_onnx
        write_onnx(model, written)
        if int8:
            _quantize(written, path)
            written.unlink()

    def load(self, path: Path, threads: int | None = None) -> Run:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads or 0
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]

        def run(inputs: Inputs):
            return dict(zip(names, session.run(names, dict(inputs)), strict=True))

        return run


def _quantize(source: Path, target: Path) -> None:
    """Store the kernels of dense layers as int8 with one scale per column; attention products stay float32."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(source, target, op_types_to_quantize=["MatMul"], per_channel=True, weight_type=QuantType.QInt8)
