"""Write ONNX with PyTorch's exporter, through `torch.export`.

Keras' own `model.export` fixes the shapes or falls back on the TorchScript exporter, which cannot write Keras' layer
norm for a dynamic length.
"""

import logging
import warnings
from pathlib import Path

import torch

from keras_bert_flow.backends.values import assume_packed_rows
from keras_bert_flow.export.served_model import ServedModel

OPSET = 18
EXAMPLE_SIZE = 3  # of each axis of the example; 1 would be treated as constant


def write_onnx(model: ServedModel, path: Path) -> None:
    """Write a model to an ONNX file."""
    sizes = {axis: torch.export.Dim(axis, max=most) for axis, most in model.axes.items()}
    shapes = dict(enumerate(sizes.values()))
    # One tensor shared by all inputs would be exported as one input.
    example = tuple(torch.ones([EXAMPLE_SIZE] * len(sizes), dtype=torch.int64) for _ in model.inputs)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it warns that torchvision is missing
    # PyTorch warns about Keras' modules; `attention_mask` is 0 or 1.
    with warnings.catch_warnings(action="ignore"), assume_packed_rows(False):
        torch.onnx.export(
            _Positional(model),
            example,
            path,
            input_names=list(model.inputs),
            output_names=list(model.outputs),
            dynamic_shapes=((shapes,) * len(model.inputs),),
            opset_version=OPSET,
            dynamo=True,
            external_data=False,
            verbose=False,
        )


class _Positional(torch.nn.Module):
    """Takes int64 inputs as positional arguments, in the order of their names, and returns a tuple of outputs."""

    def __init__(self, model: ServedModel):
        super().__init__()
        self.model = model.model
        self.names = model.inputs, model.outputs
        self.eval()

    def forward(self, *ids):
        inputs, outputs = self.names
        found = self.model(
            {name: value.to(torch.int32) for name, value in zip(inputs, ids, strict=True)}, training=False
        )
        return tuple(found[name] for name in outputs)
