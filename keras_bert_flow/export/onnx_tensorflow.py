"""Write ONNX from a TensorFlow function, with tf2onnx."""

import logging
from pathlib import Path

import numpy as np
import onnx
import tf2onnx

from keras_bert_flow.export.served_model import ServedModel
from keras_bert_flow.export.tensorflow_function import make_function

OPSET = 18


def write_onnx(model: ServedModel, path: Path) -> None:
    """Write a model to an ONNX file."""
    function, specs, _ = make_function(model)
    logging.getLogger("tf2onnx").setLevel(logging.ERROR)
    proto, _ = tf2onnx.convert.from_function(
        function, input_signature=[specs], opset=OPSET, custom_op_handlers={"Erfc": (_write_erfc, [])}
    )
    _name_axes(proto.graph, model)
    onnx.save(proto, path)


def _write_erfc(context, node, name, _) -> None:
    """Write `Erfc`, which TensorFlow's exact GELU uses and ONNX lacks, as 1 - erf."""
    (output,), shapes, dtypes = node.output, node.output_shapes, node.output_dtypes
    erf = context.make_node("Erf", node.input)
    one = context.make_const(f"{name}_one", np.ones((), np.float32))
    context.remove_node(name)
    context.make_node("Sub", [one.output[0], erf.output[0]], outputs=[output], name=name, shapes=shapes, dtypes=dtypes)


def _name_axes(graph: onnx.GraphProto, model: ServedModel) -> None:
    """Give the dynamic axes of the inputs the model's axis names, in place of tf2onnx's numbers."""
    for value in graph.input:
        for axis, size in zip(value.type.tensor_type.shape.dim, model.axes, strict=True):
            axis.dim_param = size
