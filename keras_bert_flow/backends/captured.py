"""Training steps of PyTorch that are recorded once per shape and then run without Keras' Python.

Most of a small model's step is Python: layers call each other, and every call looks at its arguments. Recording runs
that Python once and notes the operations of forward pass, loss, metrics and backward pass. They are those of an eager
step, so the numbers are the same, unless the batch has padding, which an eager step on a CPU skips. The optimizer is
not recorded: it updates all weights in a few calls.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import keras

from keras_bert_flow.backends.values import Tensor

MOST_PROGRAMS = 64  # shapes that are recorded for one model; batches of further ones run eagerly
_recording = ContextVar("recording", default=False)
_logger = logging.getLogger(__name__)


def is_recording() -> bool:
    """Return whether operations are being recorded, so that nothing may depend on the value of a tensor."""
    return _recording.get()


@contextmanager
def _recorded() -> Iterator[None]:
    token = _recording.set(True)
    try:
        yield
    finally:
        _recording.reset(token)


class CapturedStep:
    """The `train_function` of a compiled model on PyTorch, recorded for each new shape of its batches.

    A batch whose step cannot be recorded, because something in it depends on the value of a tensor, runs eagerly; a
    warning says so once.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._programs: dict[Any, _Program | None] = {}

    def __call__(self, data: Sequence[Any]) -> dict[str, Tensor]:
        """Take a step on a batch, the only item of `data`; return the metrics so far."""
        from torch.utils import _pytree as pytree

        (batch,) = data
        leaves, form = pytree.tree_flatten(batch)
        leaves = [leaf if leaf is None else keras.ops.convert_to_tensor(leaf) for leaf in leaves]
        trained, held = self._model.trainable_variables, _list_state(self._model)
        shapes = (leaf if leaf is None else (leaf.shape, leaf.dtype) for leaf in leaves)
        key = (form, *shapes, *map(id, (*trained, *held)))
        if key not in self._programs and len(self._programs) < MOST_PROGRAMS:
            self._programs[key] = _record(self._model, leaves, form)
        program = self._programs.get(key)
        return self._model.train_step(batch) if program is None else program.run(trained, held, leaves)


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


def _record(model: keras.Model, leaves: Sequence[Tensor | None], form: Any) -> _Program | None:
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.utils import _pytree as pytree

    names: list[str] = []

    def step(weights: Sequence[Tensor], state: Sequence[Tensor], leaves: Sequence[Tensor | None]) -> Any:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(pytree.tree_unflatten(leaves, form))
        weights, held = [weight.detach().requires_grad_() for weight in weights], _list_state(model)
        mapping = [*zip(model.trainable_variables, weights, strict=True), *zip(held, state, strict=True)]
        with keras.StatelessScope(state_mapping=mapping) as scope:
            # As `train_step` of Keras' trainer for PyTorch.
            outputs = model(x, training=True)
            loss = model._compute_loss(x=x, y=y, y_pred=outputs, sample_weight=sample_weight, training=True)
            rows = next(value for value in keras.tree.flatten(x) if value is not None).shape[0]
            model._loss_tracker.update_state(loss, sample_weight=rows)
            scaled = model.optimizer.scale_loss(loss)
            logs = model.compute_metrics(x, y, outputs, sample_weight=sample_weight)
        names[:] = logs
        gradients = torch.autograd.grad(scaled, weights, allow_unused=True)
        following = [scope.get_current_value(variable).detach() for variable in held]
        return list(gradients), following, [torch.as_tensor(value).detach() for value in logs.values()]

    given = _values(model.trainable_variables), _values(_list_state(model)), leaves
    try:
        with _recorded(), torch.enable_grad():
            graph = make_fx(step)(*given)
    except Exception as error:  # each kind of operation refuses in its own way
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        _logger.warning("A step that cannot be recorded runs as without `jit_compile`: %s", reason)
        return None
    on_processor = all(value.device.type == "cpu" for value in given[0])
    return _Program(model, graph if on_processor else torch.compile(graph, dynamic=False), names)


def _list_state(model: keras.Model) -> list[keras.Variable]:
    """Return what a step changes besides the weights: the seeds of dropout, and the metrics."""
    return [*model.non_trainable_variables, *model.metrics_variables]


def _values(variables: Sequence[keras.Variable]) -> list[Tensor]:
    return [variable.value.detach() for variable in variables]
