"""Training steps of PyTorch that are recorded for each shape of batches and then run without Keras' Python.

Most of a small model's step is Python: layers call each other, and every call looks at its arguments. Recording runs
that Python once and notes the operations of forward pass, loss, metrics and backward pass. They are those of an eager
step, so the numbers are the same, unless the batch has padding, which an eager step on a CPU skips. The optimizer is
not recorded: it updates all weights in a few calls.
"""

import logging
import threading
from collections.abc import Sequence
from typing import Any

import keras

from keras_bert_flow.backends.tracing import assume_packed_rows, find_packed_rows, recorded
from keras_bert_flow.backends.values import Tensor

MOST_PROGRAMS = 64  # shapes that are recorded for one model; batches of further ones run eagerly
_recording_one = threading.RLock()  # PyTorch replaces functions of its own meanwhile
_logger = logging.getLogger(__name__)


class CapturedStep:
    """The `train_function` of a compiled model on PyTorch, recorded when a shape of batches comes for the second time.

    The first step of a shape runs eagerly: what is created at first use, such as the variables of a metric, would not
    have values in a recording. If a step cannot be recorded, because something in it depends on the value of a tensor,
    a warning says so, and all further shapes run eagerly, too.

    Python runs only while a step is recorded: what a loss counts or looks up outside of tensors stays as it was then.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._seen: set[Any] = set()
        self._programs: dict[Any, _Program] = {}
        self._has_failed = False

    def __call__(self, data: Sequence[Any]) -> dict[str, Tensor]:
        """Take a step on a batch, the only item of `data`; return the metrics so far."""
        from torch.utils import _pytree as pytree

        (batch,) = data
        leaves, form = pytree.tree_flatten(batch)
        leaves = [leaf if leaf is None else keras.ops.convert_to_tensor(leaf) for leaf in leaves]
        trained, held = self._model.trainable_variables, _list_state(self._model)
        shapes = (leaf if leaf is None else (leaf.shape, leaf.dtype) for leaf in leaves)
        is_packed = find_packed_rows(batch)
        key = (form, is_packed, *shapes, *map(id, (*trained, *held)))
        if key in self._seen and key not in self._programs and not self._has_failed:
            with assume_packed_rows(is_packed):
                self._record(key, leaves, form)
        elif len(self._seen) < MOST_PROGRAMS:
            self._seen.add(key)
        program = self._programs.get(key)
        return self._model.train_step(batch) if program is None else program.run(trained, held, leaves)

    def _record(self, key: Any, leaves: Sequence[Tensor | None], form: Any) -> None:
        try:
            self._programs[key] = _record(self._model, leaves, form)
        except Exception as error:  # each kind of operation refuses in its own way
            self._has_failed = True
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            _logger.warning("A step that cannot be recorded runs as without `jit_compile`: %s", reason)


class _Program:
    """A recorded step: the gradients of the weights, the next state and the metrics, of weights, state and batch."""

    def __init__(self, model: keras.Model, compute: Any, names: Sequence[str]) -> None:
        self._optimizer, self._compute, self._names = model.optimizer, compute, names

    def run(
        self, trained: Sequence[keras.Variable], held: Sequence[keras.Variable], leaves: Sequence[Tensor | None]
    ) -> dict[str, Tensor]:
        import torch

        with torch.no_grad():
            state = _values(held)
            gradients, following, logs = self._compute(_values(trained), state, leaves)
            torch._foreach_copy_(state, following)
            self._optimizer.apply(gradients, trained)
        return dict(zip(self._names, logs, strict=True))


def _record(model: keras.Model, leaves: Sequence[Tensor | None], form: Any) -> _Program:
    """Record a step on a batch of these shapes; raise an exception if its numbers could differ from an eager step's."""
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.utils import _pytree as pytree

    if type(model).train_step is not keras.Model.train_step:
        raise TypeError("the model has a `train_step` of its own")
    names: list[str] = []

    def step(weights: Sequence[Tensor], state: Sequence[Tensor], leaves: Sequence[Tensor | None]) -> Any:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(pytree.tree_unflatten(leaves, form))
        weights, held = [weight.detach().requires_grad_() for weight in weights], _list_state(model)
        mapping = [*zip(model.trainable_variables, weights, strict=True), *zip(held, state, strict=True)]
        with keras.StatelessScope(state_mapping=mapping, collect_losses=True) as scope:
            # As `train_step` of Keras' trainer for PyTorch.
            outputs = model(x, training=True)
            loss = model._compute_loss(x=x, y=y, y_pred=outputs, sample_weight=sample_weight, training=True)
            rows = next(value for value in keras.tree.flatten(x) if value is not None).shape[0]
            model._loss_tracker.update_state(loss, sample_weight=rows)
            scaled = model.optimizer.scale_loss(loss)
            logs = model.compute_metrics(x, y, outputs, sample_weight=sample_weight)
            logs = {name: _read_log(value) for name, value in logs.items()}
        if len(scope.state_mapping) > len(mapping):
            raise TypeError("a variable changes that does not belong to the model")
        names[:] = logs
        gradients = torch.autograd.grad(scaled, weights, allow_unused=True)
        following = [scope.get_current_value(variable).detach() for variable in held]
        # A value that another variable had would be overwritten while the state is copied.
        places = {value.untyped_storage()._cdata for value in state}
        following = [
            new.clone() if new is not old and new.untyped_storage()._cdata in places else new
            for new, old in zip(following, state, strict=True)
        ]
        return list(gradients), following, [value.detach().clone() for value in logs.values()]

    given = _values(model.trainable_variables), _values(_list_state(model)), leaves
    # Fake tensors have no values: what asks for one raises an exception, even if it asks through NumPy.
    with _recording_one, recorded(), torch.enable_grad(), _make_refusal():
        graph = make_fx(step, tracing_mode="fake", _allow_non_fake_inputs=True)(*given)
    constants = [getattr(graph, str(node.target)) for node in graph.graph.nodes if node.op == "get_attr"]
    if any(constant.requires_grad for constant in constants):
        raise TypeError("a weight is trained that no variable of Keras stands for")
    on_processor = all(value.device.type == "cpu" for value in given[0])
    return _Program(model, graph if on_processor else torch.compile(graph, dynamic=False), names)


def _make_refusal() -> Any:
    """Return a context in which no tensor becomes a number of Python, not even one that has a value."""
    from torch.overrides import TorchFunctionMode

    class Refusal(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
            if function.__name__ in ("item", "__bool__", "__float__", "__int__", "__index__"):
                raise TypeError("the value of a tensor is asked for")
            return function(*arguments, **options or {})

    return Refusal()


def _read_log(value: Any) -> Tensor:
    import torch

    if isinstance(value, keras.Variable):
        value = value.value
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"a metric is of type {type(value).__name__} and not a tensor")
    return value


def _list_state(model: keras.Model) -> list[keras.Variable]:
    """Return what a step changes besides the weights: the seeds of dropout, and the metrics."""
    return [*model.non_trainable_variables, *model.metrics_variables]


def _values(variables: Sequence[keras.Variable]) -> list[Tensor]:
    return [variable.value.detach() for variable in variables]
