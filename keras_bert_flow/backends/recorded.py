"""Training steps of PyTorch that are recorded for each shape of batches, compiled, and run without Keras' Python.

Most of a small model's step is Python: layers call each other, and every call looks at its arguments. Recording runs
that Python once and notes the operations of forward pass, loss, metrics and backward pass. They are those of an eager
step but for the padding, which an eager step on a CPU skips. Inductor, PyTorch's compiler, fuses them, which changes
rounding.

On a GPU, clipping and the optimizer are part of the recording, and the result is replayed as a CUDA graph, so that no
kernel waits for Python. On a CPU AdamW is one fused kernel already, and inductor takes longer for its updates of each
weight than for all the rest.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras

from keras_bert_flow.backends.runtime import is_on_processor
from keras_bert_flow.backends.values import Tensor, assume_packed_rows, has_packed_rows, list_values

MOST_PROGRAMS = 16  # shapes that are recorded for one model; batches of further ones run eagerly
_recording_one = threading.RLock()  # PyTorch replaces functions of its own meanwhile
_logger = logging.getLogger(__name__)


class CapturedStep:
    """The `train_function` of a compiled model on PyTorch, recorded and compiled for each shape of batches.

    The first shape is recorded at once, so that a resumed run computes its first step as the others; a later one when
    it comes for the second time, since the last batch of an epoch may be the only one of its shape. With a loss of
    one's own the first step runs eagerly, too: what that creates at first use would not have values in a recording. If
    a step cannot be recorded, because something in it depends on the value of a tensor, a warning says so, and all
    further shapes run eagerly.

    Python runs only while a step is recorded: what a loss counts or looks up outside of tensors stays as it was then.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._seen: set[Any] = set()
        self._programs: dict[Any, _Program] = {}
        self._variables: _Variables | None = None
        self._known: dict[tuple[int, ...], _Variables] = {}
        self._has_failed = False

    def __call__(self, data: Sequence[Any]) -> dict[str, Tensor]:
        """Take a step on a batch, the only item of `data`; return the metrics so far."""
        from torch.utils import _pytree as pytree

        (batch,) = data
        leaves, form = pytree.tree_flatten(batch)
        leaves = [leaf if leaf is None else keras.ops.convert_to_tensor(leaf) for leaf in leaves]
        variables = self._find_variables()
        shapes = (leaf if leaf is None else (leaf.shape, leaf.dtype) for leaf in leaves)
        inputs = batch[0] if isinstance(batch, tuple | list) and batch else batch
        mask = inputs.get("padding_mask") if isinstance(inputs, Mapping) else None
        is_packed = None if mask is None else has_packed_rows(keras.ops.convert_to_tensor(mask))
        key = (id(variables), form, is_packed, *shapes)
        program = self._programs.get(key)
        is_due = key in self._seen or (not self._seen and variables.is_complete and _has_known_losses(self._model))
        if program is None and is_due and not self._has_failed and len(self._programs) < MOST_PROGRAMS:
            try:
                with assume_packed_rows(is_packed, is_recorded=True):
                    program = self._programs[key] = _record(self._model, variables, leaves, form)
            except Exception as error:  # each kind of operation refuses in its own way
                self._has_failed = True
                _logger.warning("A step that cannot be recorded runs as without `jit_compile`: %s", _shorten(error))
        self._seen.add(key)
        return self._model.train_step(batch) if program is None else program.run(leaves)

    def _find_variables(self) -> "_Variables":
        """Return the variables of a step: those of the last one, unless others are trained now."""
        if self._variables is None or not self._variables.are_current():
            found = _Variables(self._model)
            self._variables = self._known.setdefault(tuple(map(id, found.all)), found)
        return self._variables


class _Variables:
    """What a step reads or changes: weights, then the seeds of dropout and metrics, then the state of the optimizer."""

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self.trained = model.trainable_variables
        self.held = [*model.non_trainable_variables, *model.metrics_variables]
        self.optimized = model.optimizer.variables
        self.all = [*self.trained, *self.held, *self.optimized]
        self.is_complete = self._is_complete()
        self._flags = self._list_flags()

    def _is_complete(self) -> bool:
        """Return whether no step will create further ones; Keras creates metrics and optimizer before the first."""
        metrics, optimizer = self._model._compile_metrics, self._model.optimizer
        return self._model.built and optimizer.built and (metrics is None or metrics.built)

    def are_current(self) -> bool:
        """Return whether they still are those of the model, without a look at every layer."""
        return self.is_complete and self._flags == self._list_flags()

    def _list_flags(self) -> list[Any]:
        return [id(self._model.optimizer), *(variable.trainable for variable in self.all)]


def _has_known_losses(model: keras.Model) -> bool:
    """Return whether the losses are names or classes of Keras or of ours."""
    return all(isinstance(loss, str) or _is_known(type(loss)) for loss in keras.tree.flatten(model.loss))


def _is_known(code: Any) -> bool:
    return code.__module__.startswith(("keras.", "keras_bert_flow."))


class _Program:
    """A recorded step.

    Args:
        compute: a function of the values of `variables` and of a batch, which changes the former in place. Returns the
            metrics, and then the gradients if `optimizer` is not None.
        names: of the metrics.
        optimizer: applies the gradients to `trained`, if that is not part of the recording.
    """

    def __init__(
        self,
        compute: Callable[..., Sequence[Tensor]],
        variables: Sequence[keras.Variable],
        names: Sequence[str],
        trained: Sequence[keras.Variable],
        optimizer: Any,
    ) -> None:
        self.compute, self.optimizer = compute, optimizer
        self._variables, self._names, self._trained = variables, names, trained

    def run(self, leaves: Sequence[Tensor | None]) -> dict[str, Tensor]:
        """Take a step on the leaves of a batch; return the metrics by name."""
        import torch

        with torch.no_grad():
            found = self.compute(*list_values(self._variables), *_leave_out_none(leaves))
            if self.optimizer is not None:
                self.optimizer.apply(list(found[len(self._names) :]), self._trained)
        return dict(zip(self._names, found, strict=False))


def _leave_out_none(leaves: Sequence[Tensor | None]) -> list[Tensor]:
    return [leaf for leaf in leaves if leaf is not None]


def _record(model: keras.Model, variables: _Variables, leaves: Sequence[Tensor | None], form: Any) -> _Program:
    """Record a step on a batch of these shapes; raise an exception if its numbers could differ from an eager step's."""
    if not _is_known(type(model).train_step):
        raise TypeError("the model has a `train_step` of its own")
    optimizer, listed = model.optimizer, [*variables.trained, *variables.held]
    is_replaced = "apply" in vars(optimizer)  # by one that exchanges gradients with other processes
    if not is_on_processor() and not is_replaced:
        try:
            graph, names = _trace(model, variables.trained, variables.all, leaves, form)
            optimizer, listed = None, variables.all
        except Exception as error:  # the optimizer may be what asks for values
            _logger.warning("The optimizer is called after the recorded step: %s", _shorten(error))
    if optimizer is not None:
        graph, names = _trace(model, variables.trained, listed, leaves, form, has_optimizer=False)
    given = [value.detach() for value in list_values(listed)] + _leave_out_none(leaves)
    compiled = _compile(graph, given)
    if compiled is not graph and given[0].device.type == "cuda":
        compiled = _Replayed(compiled, len(listed))
    return _Program(compiled, listed, names, variables.trained, optimizer)


def _trace(
    model: keras.Model,
    trained: Sequence[keras.Variable],
    listed: Sequence[keras.Variable],
    leaves: Sequence[Tensor | None],
    form: Any,
    has_optimizer: bool = True,
) -> tuple[Any, list[str]]:
    """Return the graph of a step, a function as `_Program` takes it, and the names of its metrics.

    Args:
        trained, listed: the weights; they, and all else that the step reads or changes.
        leaves, form: of the batch.
    """
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.utils import _pytree as pytree

    names: list[str] = []

    def step(*given: Tensor) -> list[Tensor]:
        values, batch = given[: len(listed)], iter(given[len(listed) :])
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(
            pytree.tree_unflatten([None if leaf is None else next(batch) for leaf in leaves], form)
        )
        weights = [value.detach().requires_grad_() for value in values[: len(trained)]]
        places = [*weights, *values[len(trained) :]]
        with keras.StatelessScope([*zip(listed, places, strict=True)], collect_losses=True) as scope:
            # As `train_step` of `backends.eager`, with what it reads and changes as arguments.
            outputs = model(x, training=True)
            loss = model._compute_loss(x=x, y=y, y_pred=outputs, sample_weight=sample_weight, training=True)
            rows = next(value for value in keras.tree.flatten(x) if value is not None).shape[0]
            model._loss_tracker.update_state(loss, sample_weight=rows)
            gradients = list(torch.autograd.grad(model.optimizer.scale_loss(loss), weights, allow_unused=True))
            if has_optimizer:
                with torch.no_grad():
                    model.optimizer.apply(gradients, trained)
                gradients = []
            logs = model.compute_metrics(x, y, outputs, sample_weight=sample_weight)
            logs = {name: value.value if isinstance(value, keras.Variable) else value for name, value in logs.items()}
            for value in logs.values():
                if not isinstance(value, torch.Tensor):
                    raise TypeError(f"a metric is of type {type(value).__name__} and not a tensor")
        if len(scope.state_mapping) > len(listed):
            raise TypeError("a variable changes that does not belong to the model")
        names[:] = logs
        found = [value.detach().clone() for value in logs.values()]
        with torch.no_grad():
            _keep(places, [scope.get_current_value(variable) for variable in listed])
        return found + gradients

    given = [value.detach() for value in list_values(listed)] + _leave_out_none(leaves)
    # Fake tensors have no values: what asks for one raises an exception, even if it asks through NumPy.
    with _recording_one, torch.enable_grad(), _make_refusal():
        graph = make_fx(step, tracing_mode="fake", _allow_non_fake_inputs=True)(*given)
    constants = [getattr(graph, str(node.target)) for node in graph.graph.nodes if node.op == "get_attr"]
    if any(constant.requires_grad for constant in constants):
        raise TypeError("a weight is trained that no variable of Keras stands for")
    return graph, names


def _keep(places: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Copy the next values of variables to where the present ones are."""
    changed = [(place, value.detach()) for place, value in zip(places, values, strict=True) if value is not place]
    storages = {place.untyped_storage()._cdata for place in places}
    # A value that another variable had would be overwritten by then.
    changed = [
        (place, value.clone() if value.untyped_storage()._cdata in storages else value) for place, value in changed
    ]
    for place, value in changed:
        place.detach().copy_(value)


def _compile(graph: Any, given: Sequence[Tensor]) -> Callable[..., Sequence[Tensor]]:
    """Return the compiled graph, or the graph itself where its operations cannot be compiled."""
    import torch

    started_at = time.perf_counter()
    try:
        with torch.no_grad(), _recording_one:
            compiled = torch._inductor.compile(graph, [*given])
    except Exception as error:  # no C++ compiler, for example
        _logger.warning("A recorded step runs without being compiled: %s", _shorten(error))
        return graph
    _logger.info("Training step: compiled in %.0f s.", time.perf_counter() - started_at)
    return compiled


class _Replayed:
    """A compiled step on a GPU, from its second call on replayed as a CUDA graph.

    The first replay is compared with the step that it stands for. If it is not the same, or there is no graph, a
    warning says so, and the compiled step runs as it is.

    Args:
        compute: see `_Program`.
        num_variables: number of its arguments that stay where they are; the others are those of a batch.
    """

    def __init__(self, compute: Callable[..., Sequence[Tensor]], num_variables: int) -> None:
        self._compute, self._count = compute, num_variables
        self._places: list[int] = []
        self._replay: Callable[[], Sequence[Tensor]] | None = None
        self._has_failed = False

    def __call__(self, *given: Tensor) -> Sequence[Tensor]:
        variables, batch = given[: self._count], given[self._count :]
        places = [value.data_ptr() for value in variables]
        if self._has_failed or places != self._places:
            # Also warms up what a graph cannot hold, such as the choice of an algorithm.
            self._places, self._replay = places, None
            return self._compute(*given)
        if self._replay is None:
            return self._record(variables, batch)
        for place, value in zip(self._batch, batch, strict=True):
            place.copy_(value)
        return [value.clone() for value in self._replay()]

    def _record(self, variables: Sequence[Tensor], batch: Sequence[Tensor]) -> Sequence[Tensor]:
        """Take a step, and record it if a replay makes the same."""
        try:
            before, following = ([value.clone() for value in variables] for _ in range(2))
            self._batch = [value.clone() for value in batch]
        except RuntimeError as error:  # too little memory for two more copies
            self._give_up(error)
            return self._compute(*variables, *batch)
        expected = [value.clone() for value in self._compute(*following, *self._batch)]
        try:
            self._replay = _record_graph(lambda: self._compute(*variables, *self._batch))
            found = self._replay()
            if not (all(map(_are_close, found, expected)) and all(map(_has_moved_to, variables, following, before))):
                raise RuntimeError("its first replay differs from the step")
        except RuntimeError as error:  # that of CUDA, too
            self._give_up(error)
        for place, value in zip(variables, following, strict=True):
            place.detach().copy_(value)
        return expected

    def _give_up(self, error: RuntimeError) -> None:
        self._has_failed = True
        _logger.warning("A compiled step runs without a CUDA graph: %s", _shorten(error))


def _record_graph(function: Callable[[], Sequence[Tensor]]) -> Callable[[], Sequence[Tensor]]:
    """Return a function that replays the kernels of another, whose tensors stay where they are."""
    import torch

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = function()

    def replay() -> Sequence[Tensor]:
        graph.replay()
        return found

    return replay


def _are_close(metric: Tensor, expected: Tensor) -> bool:
    import torch

    return torch.allclose(metric.double(), expected.double(), rtol=1e-3)  # that of sums in bfloat16 in another order


def _has_moved_to(value: Tensor, expected: Tensor, before: Tensor) -> bool:
    """Return whether a step changed a variable as expected, but for the order in which threads add numbers up."""
    import torch

    if not value.is_floating_point():  # counts and seeds
        return torch.equal(value, expected)
    if value.ndim == 1:  # the gradient of a key's bias is rounding alone, of which Adam makes as large a step
        return True
    # What is not updated, or twice, is off by all of the change.
    return bool((value - expected).double().norm() <= 0.1 * (expected - before).double().norm())


def _shorten(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _make_refusal() -> Any:
    """Return a context in which no tensor becomes a number of Python, not even one that has a value."""
    from torch.overrides import TorchFunctionMode

    class Refusal(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
            if function.__name__ in ("item", "__bool__", "__float__", "__int__", "__index__"):
                raise TypeError("the value of a tensor is asked for")
            return function(*arguments, **options or {})

    return Refusal()
