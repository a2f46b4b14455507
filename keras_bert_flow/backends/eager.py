"""Eager steps on PyTorch with less of Keras' Python, which takes longer than the operations of a small model.

Results are those of Keras: only what it looks up again for each layer of each step is left out.
"""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import keras

from keras_bert_flow.backends.kernels import call_of
from keras_bert_flow.backends.values import Tensor, list_values, outside_scopes


class LayerWalk:
    """The layers of a functional model, one after the other, as `Functional.call` calls them.

    Where all of them compute in float32, no input is cast to the type of a layer, and they are called by `call_of`.

    Args:
        model: a functional model.
    """

    def __init__(self, model: keras.Model) -> None:
        nodes = [node for depth in sorted(model._nodes_by_depth, reverse=True) for node in model._nodes_by_depth[depth]]
        self._nodes = [
            (
                node.operation,
                "training" in inspect.signature(node.operation.call).parameters,
                node.arguments,
                [*map(id, node.outputs)],
            )
            for node in nodes
            if node.operation and not node.is_input
        ]
        self._all_layers = [*model._flatten_layers()]
        computing = [layer for layer in self._all_layers if not isinstance(layer, keras.layers.InputLayer)]
        is_float32 = all(layer.compute_dtype == "float32" for layer in computing)
        layers = [operation for operation, *_ in self._nodes if isinstance(operation, keras.layers.Layer)]
        self._direct = {id(layer) for layer in layers} if is_float32 else set()
        self._inputs = [*map(id, model.inputs)]
        given = model.input if type(model.input) is dict else {}
        self._first_variable = model.variables[:1]
        self._declared = {name: (len(tensor.shape), tensor.dtype) for name, tensor in given.items()}
        self._order = [name for tensor in model.inputs for name in given if given[name] is tensor]
        self._outputs = model._outputs_struct

    def __call__(self, inputs: Sequence[Tensor], training: bool | None) -> Any:
        """Return the outputs of the model for its inputs, in the order of `model.inputs`."""
        values = dict(zip(self._inputs, inputs, strict=True))
        for operation, has_training, arguments, places in self._nodes:
            call = call_of(operation) if id(operation) in self._direct else operation
            options = {"training": training} if has_training and training is not None else {}
            found = call(*_fill(arguments.args, values), **_fill(arguments.kwargs, values) | options)
            found = [found] if len(places) == 1 and not isinstance(found, Mapping) else keras.tree.flatten(found)
            values.update(zip(places, found, strict=True))
        return _fill(self._outputs, values)

    def order(self, inputs: Any) -> list[Tensor] | None:
        """Return the values of a dict of inputs for a call; None if Keras has to convert them or to clear losses."""
        import torch

        if not self._direct or type(inputs) is not dict or inputs.keys() != self._declared.keys():
            return None
        (weight,) = list_values(self._first_variable)
        for name, (rank, dtype) in self._declared.items():
            value = inputs[name]
            if not isinstance(value, torch.Tensor) or value.device != weight.device or value.ndim != rank:
                return None
            if keras.backend.standardize_dtype(value.dtype) != dtype:
                return None
        return None if any(layer._losses for layer in self._all_layers) else [inputs[name] for name in self._order]


def _fill(structure: Any, values: Mapping[int, Tensor]) -> Any:
    """Return a structure with tensors in place of the symbolic ones that stand for them."""
    if isinstance(structure, keras.KerasTensor):
        return values[id(structure)]
    if isinstance(structure, dict):
        return {name: _fill(part, values) for name, part in structure.items()}
    if type(structure) in (list, tuple):
        return type(structure)(_fill(part, values) for part in structure)
    return structure


def train_step(
    model: Any, data: Any, variables: Sequence[keras.Variable], walk: LayerWalk | None = None
) -> dict[str, Tensor]:
    """Train a compiled model on a batch, and return its metrics, as `train_step` of Keras' trainer does.

    Args:
        variables: those that are trained.
        walk: of the model, if it may take the place of its call.
    """
    import torch

    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    inputs = None if walk is None else walk.order(x)
    if walk is None or inputs is None:
        outputs = model(x, training=True)
    else:
        with outside_scopes():
            outputs = walk(inputs, True)
    loss = model._compute_loss(x=x, y=y, y_pred=outputs, sample_weight=sample_weight, training=True)
    rows = next(value for value in keras.tree.flatten(x) if value is not None).shape[0]
    model._loss_tracker.update_state(loss, sample_weight=rows)
    gradients = torch.autograd.grad(model.optimizer.scale_loss(loss), list_values(variables), allow_unused=True)
    with torch.no_grad():
        model.optimizer.apply(list(gradients), variables)
    return model.compute_metrics(x, y, outputs, sample_weight=sample_weight)
