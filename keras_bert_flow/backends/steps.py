"""Steps of a model that are compiled: prediction and evaluation on JAX, recorded training steps on PyTorch.

In Keras, `predict` and `evaluate` on JAX take the values out of the variables, donate them to each step, and put the
results back at the end. A second thread finds the variables empty or their buffers deleted, and so does every later
call if an exception such as Ctrl-C ends the loop. (`fit` puts them back since keras-team/keras#20851 and #21019.) Here
the loops are still those of Keras, with its input formats, callbacks and progress bar, but they run on a stand-in model
without weights, whose steps read the weights of the model.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from keras_bert_flow.backends.values import Tensor, assume_packed_rows, has_packed_rows

PARTS = ("begin", "batch_begin", "batch_end", "end")
FORWARDED = [f"on_{mode}_{part}" for mode in ("predict", "test") for part in PARTS]


class StatelessLoops:
    """The loops of one model, and its steps, each compiled once per shape.

    Args:
        model: a built model.
    """

    def __init__(self, model: keras.Model) -> None:
        self._find_model = lambda: model  # not an attribute, which Keras would take for a layer
        self._predict: Callable | None = None
        self._test: Callable | None = None
        # Making one in each call would take time, and Keras' global state is off if that is interrupted.
        self._idle: list[_StandIn] = []

    def predict_on_batch(self, x: Any) -> Any:
        """As `keras.Model.predict_on_batch`."""
        return keras.tree.map_structure(np.array, self._call(x))

    def predict(self, x: Any, callbacks: Any = None, **options: Any) -> Any:
        """As `keras.Model.predict`."""
        options["callbacks"] = self._forward(callbacks)
        return self._run(lambda stand_in: stand_in.predict(x, **options), self._call)

    def evaluate(self, *data: Any, callbacks: Any = None, return_dict: bool = False, **options: Any) -> Any:
        """As `keras.Model.evaluate`; the model must be compiled."""
        options["callbacks"] = self._forward(callbacks)
        return self._measure(lambda stand_in: stand_in.evaluate(*data, return_dict=True, **options), return_dict)

    def test_on_batch(self, *data: Any, return_dict: bool = False, **options: Any) -> Any:
        """As `keras.Model.test_on_batch`; the model must be compiled."""
        return self._measure(lambda stand_in: stand_in.test_on_batch(*data, return_dict=True, **options), return_dict)

    def _run(self, loop: Callable, step: Callable) -> Any:
        """Run a loop on a stand-in that no other thread uses."""
        try:
            stand_in = self._idle.pop()
        except IndexError:
            stand_in = _StandIn()
        try:
            stand_in.step = step
            return loop(stand_in)
        finally:
            self._idle.append(stand_in)

    def _forward(self, callbacks: Any) -> Any:
        if not callbacks or isinstance(callbacks, keras.callbacks.CallbackList):
            return callbacks
        return [_ForwardedCallbacks(callbacks, self._find_model())]

    def _call(self, x: Any) -> Any:
        model = self._find_model()

        def predict(values: Sequence[Any], x: Any) -> Any:
            with keras.StatelessScope(state_mapping=list(zip(model.variables, values, strict=True))):
                return model(x, training=False)

        if self._predict is None:
            self._predict = compile_step(model, predict)
        return self._predict([variable.value for variable in model.variables], x)

    def _measure(self, loop: Callable, return_dict: bool) -> Any:
        """Run a loop, put its metrics into those of the model, and return them."""
        model = self._find_model()
        model.reset_metrics()
        values: list[Any] = []

        def test(data: Any) -> Any:
            nonlocal values
            if self._test is None:
                # Creates the variables of the metrics, which Keras does at the first labels and outputs.
                x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
                y_pred = self._call(x)
                model.compute_loss(x, y, y_pred, sample_weight, training=False)
                model.compute_metrics(x, y, y_pred, sample_weight)
                model.reset_metrics()
                self._test = compile_step(model, lambda *given: _measure(model, *given))
            state = values or [variable.value for variable in model.metrics_variables]
            logs, values = self._test([variable.value for variable in model.variables], state, data)
            return logs

        logs = self._run(loop, test)
        for variable, value in zip(model.metrics_variables, values, strict=False):  # none if there was no batch
            variable.assign(value)
        if return_dict:
            return logs
        # In the order of Keras: by the metrics of the model, then those of several outputs by name.
        names = [part.name for metric in model.metrics for part in getattr(metric, "metrics", [metric])]
        listed = [logs[name] for name in names if name in logs]
        listed += [logs[name] for name in sorted(logs) if name not in names]
        return listed[0] if len(listed) == 1 else listed


class _StandIn(keras.Model):
    """A model without weights and metrics, whose step on a batch is a function that is set before each loop."""

    step: Any = None

    def __init__(self) -> None:
        super().__init__(name="loop")
        self.compile(optimizer=None)
        self.built = True

    def make_predict_function(self, force: bool = False) -> None:
        unpack = keras.utils.unpack_x_y_sample_weight
        self.predict_function = lambda state, iterator: (self.step(unpack(next(iterator))[0]), state)

    def make_test_function(self, force: bool = False) -> None:
        self.test_function = lambda state, iterator: (self.step(next(iterator)), state)

    def get_metrics_result(self) -> dict[str, Any]:
        return {}  # so that the loop returns those of its last step


class _ForwardedCallbacks(keras.callbacks.Callback):
    """Callbacks of a loop over a stand-in that see the model itself, and whose requests to stop reach the loop."""

    def __init__(self, callbacks: Any, model: keras.Model) -> None:
        super().__init__()
        self._callbacks, self._owner = keras.callbacks.CallbackList(callbacks, model=model), model
        model.stop_predicting = model.stop_evaluating = False

    def set_params(self, params: Mapping[str, Any]) -> None:
        self._callbacks.set_params(params)


def _forward(name: str) -> Callable:
    def method(self: _ForwardedCallbacks, *arguments: Any, **named: Any) -> None:
        getattr(self._callbacks, name)(*arguments, **named)
        if self._owner.stop_predicting:
            self.model.stop_predicting = True
        if self._owner.stop_evaluating:
            self.model.stop_evaluating = True

    return method


for _name in FORWARDED:
    setattr(_ForwardedCallbacks, _name, _forward(_name))


def make_test_function(model: keras.Model) -> Callable:
    """Return a `test_function` that does not donate the state, for the evaluations inside `fit`."""
    step = compile_step(model, lambda state, data: model.test_step(state, data))

    def run(state: Any, iterator: Iterator) -> tuple[Any, Any]:
        logs, state = step(state, next(iterator))
        for _ in range(model.steps_per_execution - 1):
            try:
                logs, state = step(state, next(iterator))
            except StopIteration:
                break
        return logs, state

    return run


def keeping_grad_mode() -> AbstractContextManager:
    """Return a context that leaves PyTorch's recording of gradients as it was.

    Keras predicts under `torch.no_grad()`. An interrupt while that is left would keep gradients off in this thread.
    """
    if keras.backend.backend() != "torch":
        return nullcontext()
    import torch

    return torch.set_grad_enabled(torch.is_grad_enabled())


def compile_step(model: keras.Model, step: Callable) -> Callable:
    """Compile a step, unless `compile` of the model has turned that off."""
    if model.run_eagerly or not model.jit_compile:
        return step
    import jax

    return jax.jit(step)


def _measure(
    model: keras.Model, values: Sequence[Any], metrics: Sequence[Any], data: tuple
) -> tuple[dict[str, Any], list[Tensor]]:
    """Return the metrics with those of a batch, by name, and the values of their variables."""
    # By identity: which variables are trainable may change between calls, their order does not.
    known = {id(variable): value for variable, value in zip(model.variables, values, strict=True)}
    groups = (model.trainable_variables, model.non_trainable_variables)
    state = (*([known[id(variable)] for variable in group] for group in groups), metrics)
    logs, state = model.test_step(state, data)
    return logs, state[2]


# Training steps of PyTorch that are recorded for each shape of batches and then run without Keras' Python.
#
# Most of a small model's step is Python: layers call each other, and every call looks at its arguments. Recording runs
# that Python once and notes the operations of forward pass, loss, metrics and backward pass. They are those of an eager
# step, so the numbers are the same, unless the batch has padding, which an eager step on a CPU skips. The optimizer is
# not recorded: it updates all weights in a few calls.

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
        inputs = batch[0] if isinstance(batch, tuple | list) and batch else batch
        mask = inputs.get("padding_mask") if isinstance(inputs, Mapping) else None
        is_packed = None if mask is None else has_packed_rows(keras.ops.convert_to_tensor(mask))
        key = (form, is_packed, *shapes, *map(id, (*trained, *held)))
        if key in self._seen and key not in self._programs and not self._has_failed:
            try:
                with assume_packed_rows(is_packed, is_recorded=True):
                    self._programs[key] = _record(self._model, leaves, form)
            except Exception as error:  # each kind of operation refuses in its own way
                self._has_failed = True
                reason = " ".join(str(error).split())[:200] or type(error).__name__
                _logger.warning("A step that cannot be recorded runs as without `jit_compile`: %s", reason)
        elif len(self._seen) < MOST_PROGRAMS:
            self._seen.add(key)
        program = self._programs.get(key)
        return self._model.train_step(batch) if program is None else program.run(trained, held, leaves)


@dataclass(frozen=True)
class _Program:
    """A recorded step: the gradients of the weights, the next state and the metrics, of weights, state and batch."""

    optimizer: Any
    compute: Any
    names: Sequence[str]

    def run(
        self, trained: Sequence[keras.Variable], held: Sequence[keras.Variable], leaves: Sequence[Tensor | None]
    ) -> dict[str, Tensor]:
        import torch

        with torch.no_grad():
            state = _values(held)
            gradients, following, logs = self.compute(_values(trained), state, leaves)
            torch._foreach_copy_(state, following)
            self.optimizer.apply(gradients, trained)
        return dict(zip(self.names, logs, strict=True))


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
            logs = {name: value.value if isinstance(value, keras.Variable) else value for name, value in logs.items()}
            for value in logs.values():
                if not isinstance(value, torch.Tensor):
                    raise TypeError(f"a metric is of type {type(value).__name__} and not a tensor")
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
    with _recording_one, torch.enable_grad(), _make_refusal():
        graph = make_fx(step, tracing_mode="fake", _allow_non_fake_inputs=True)(*given)
    constants = [getattr(graph, str(node.target)) for node in graph.graph.nodes if node.op == "get_attr"]
    if any(constant.requires_grad for constant in constants):
        raise TypeError("a weight is trained that no variable of Keras stands for")
    on_processor = all(value.device.type == "cpu" for value in given[0])
    return _Program(model.optimizer, graph if on_processor else torch.compile(graph, dynamic=False), names)


def _make_refusal() -> Any:
    """Return a context in which no tensor becomes a number of Python, not even one that has a value."""
    from torch.overrides import TorchFunctionMode

    class Refusal(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
            if function.__name__ in ("item", "__bool__", "__float__", "__int__", "__index__"):
                raise TypeError("the value of a tensor is asked for")
            return function(*arguments, **options or {})

    return Refusal()


def _list_state(model: keras.Model) -> list[keras.Variable]:
    """Return what a step changes besides the weights: the seeds of dropout, and the metrics."""
    return [*model.non_trainable_variables, *model.metrics_variables]


def _values(variables: Sequence[keras.Variable]) -> list[Tensor]:
    return [variable.value.detach() for variable in variables]


# Keep compiled programs for models that are built anew with the same shapes.


@contextmanager
def keeping_compilations(folder: str) -> Iterator[None]:
    """Let JAX read from a folder, within the block, what it has compiled there before; other backends are as they are.

    Each start of a fine-tuning is a model of its own, whose programs are those of the first: 86 seconds of compilation
    on two busy cores, then 8. A cache of the user's own (`JAX_COMPILATION_CACHE_DIR`) is left alone.

    Args:
        folder: exists, and is removed by the caller.
    """
    if keras.backend.backend() != "jax":
        yield
        return
    import jax
    from jax.experimental.compilation_cache.compilation_cache import reset_cache

    if jax.config.jax_compilation_cache_dir:
        yield
        return
    settings = {
        "jax_compilation_cache_dir": folder,
        "jax_persistent_cache_min_compile_time_secs": 0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: getattr(jax.config, name) for name in settings}
    for name, value in settings.items():
        jax.config.update(name, value)
    reset_cache()  # it is made at the first compilation, and then keeps its folder
    try:
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        reset_cache()
