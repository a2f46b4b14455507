"""Prediction and evaluation on JAX by steps that leave the state of a model where it is.

In Keras, `predict` and `evaluate` on JAX take the values out of the variables, donate them to each step, and put the
results back at the end. A second thread finds the variables empty or their buffers deleted, and so does every later
call if an exception such as Ctrl-C ends the loop. (`fit` puts them back since keras-team/keras#20851 and #21019.) Here
the loops are still those of Keras, with its input formats, callbacks and progress bar, but they run on a stand-in model
without weights, whose steps read the weights of the model.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import keras
import numpy as np

from keras_bert_flow.backends.values import Tensor

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
