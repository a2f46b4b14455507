"""Write ONNX with PyTorch's exporter, by way of `torch.export`.

Keras' own `model.export` fixes the shapes or falls back on the exporter of TorchScript, which cannot write Keras' layer
norm of a length that is not constant.
"""

import logging
import warnings
from pathlib import Path

import torch

from keras_bert_flow.export.served_model import ServedModel

OPSET = 18
EXAMPLE_SIZE = 3  # of each axis of the example; 1 would be taken for constant


def write_onnx(model: ServedModel, path: Path) -> None:
    """Write a model to a file."""
    sizes = {axis: torch.export.Dim(axis, max=most) for axis, most in model.axes.items()}
    shapes = dict(enumerate(sizes.values()))
    # One tensor for all of them would be exported as one input.
    example = tuple(torch.ones([EXAMPLE_SIZE] * len(sizes), dtype=torch.int64) for _ in model.inputs)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it warns that there is no torchvision
    with warnings.catch_warnings(action="ignore"):  # of PyTorch's own, about Keras' modules
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
    """Takes the inputs, int64, in the order of their names, and returns a tuple of outputs."""

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
