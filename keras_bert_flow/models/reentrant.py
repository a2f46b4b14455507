"""Base class of all models: prediction and evaluation survive threads, Ctrl-C and other exceptions."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import keras

from keras_bert_flow.backends.eager import LayerWalk, train_step
from keras_bert_flow.backends.kernels import call_of
from keras_bert_flow.backends.recorded import CapturedStep
from keras_bert_flow.backends.runtime import is_on_processor
from keras_bert_flow.backends.steps import StatelessLoops, keeping_grad_mode, make_test_function

_logger = logging.getLogger(__name__)


class ReentrantModel(keras.Model):
    """Functional model that several threads may call, `predict` and `evaluate`, on every backend.

    None of these calls changes a weight at any moment, so an exception in one, such as KeyboardInterrupt, has no effect
    on later calls. The metrics of the model are shared, so evaluations wait for each other. `fit` and `train_on_batch`
    are as in Keras: one thread at a time, and no other call meanwhile.

    Not an `abc.ABC`, because Keras instantiates every class between `keras.Model` and a model to insert `Functional`.
    """

    train_function: Any  # set by Keras, as the next one
    test_function: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._evaluating = threading.RLock()
        self._loops = StatelessLoops(self) if keras.backend.backend() == "jax" else None
        self._walk: LayerWalk | None = None

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        has_masks = mask is not None and any(each is not None for each in keras.tree.flatten(mask))
        if keras.backend.backend() != "torch" or has_masks:
            return super().call(inputs, training=training, mask=mask)
        if self._walk is None:
            self._walk = LayerWalk(self)
        return self._walk(self._standardize_inputs(inputs), training)

    def train_step(self, *given: Any) -> Any:
        if keras.backend.backend() != "torch" or not (variables := self.trainable_variables):
            return super().train_step(*given)
        is_direct = getattr(self.call, "__func__", None) is ReentrantModel.call and call_of(self) is not self
        (data,) = given
        return train_step(self, data, variables, self._walk if is_direct else None)  # the first call makes the walk

    def compile(self, *args: Any, **kwargs: Any) -> None:
        super().compile(*args, **kwargs)
        if keras.backend.backend() == "jax":
            self._loops = StatelessLoops(self)

    def fit(self, *args: Any, **kwargs: Any) -> keras.callbacks.History:
        with self._keeping_state():
            return super().fit(*args, **kwargs)

    def predict_on_batch(self, x: Any) -> Any:
        with self._keeping_state():
            return super().predict_on_batch(x) if self._loops is None else self._loops.predict_on_batch(x)

    def predict(
        self,
        x: Any,
        batch_size: int | None = None,
        verbose: str | int = "auto",
        steps: int | None = None,
        callbacks: Any = None,
    ) -> Any:
        options = {"batch_size": batch_size, "verbose": verbose, "steps": steps, "callbacks": callbacks}
        with self._keeping_state():
            return super().predict(x, **options) if self._loops is None else self._loops.predict(x, **options)

    def evaluate(self, x: Any = None, y: Any = None, *args: Any, **kwargs: Any) -> Any:
        # Inside `fit` Keras passes its own argument, and the state of the training is not in the variables.
        is_inner = any(name.startswith("_") for name in kwargs)
        with self._evaluating, self._keeping_state():
            if self._loops is None or is_inner or not self.compiled:
                return super().evaluate(x, y, *args, **kwargs)
            return self._loops.evaluate(x, y, *args, **kwargs)

    def train_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        with self._keeping_state():
            return super().train_on_batch(*args, **kwargs)

    def test_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        with self._evaluating, self._keeping_state():
            if self._loops is None or not self.compiled:
                return super().test_on_batch(*args, **kwargs)
            return self._loops.test_on_batch(*args, **kwargs)

    @contextmanager
    def _keeping_state(self) -> Iterator[None]:
        """Leave PyTorch's recording of gradients and Keras' name scopes as they were, after an exception too.

        Keras' `name_scope` appends to a list of the thread, and an interrupt between that and the body of its `with`
        leaves the entry there: the path of each variable that is created later would begin with it.

        The next call after a failed one traces its own TensorFlow function: one that failed in its first trace would
        not create the variables of the optimizer and the metrics any more.
        """
        try:
            with keeping_grad_mode():
                yield
        except BaseException as error:
            if isinstance(error, Exception) and keras.backend.backend() == "tensorflow":
                self.train_function = self.test_function = self.predict_function = None
            close_name_scopes()
            raise

    def make_train_function(self, force: bool = False) -> None:
        """With `jit_compile` on PyTorch, record the step instead of compiling Python; see `CapturedStep`."""
        is_recorded = keras.backend.backend() == "torch" and self.jit_compile and not self.run_eagerly
        if keras.backend.backend() == "torch" and self.train_function is None:
            _name_steps("recorded and compiled" if is_recorded else "eager")
        if not is_recorded or self.steps_per_execution > 1:  # which Keras refuses
            super().make_train_function(force)
        elif force or self.train_function is None:
            self.train_function = CapturedStep(self)

    def _resolve_auto_jit_compile(self) -> bool:
        """Return whether `jit_compile="auto"` compiles steps: on PyTorch, too, if it is on a GPU."""
        if keras.backend.backend() == "torch":
            return not is_on_processor()
        return super()._resolve_auto_jit_compile()

    def _should_torch_compile(self) -> bool:
        return False  # asked by Keras on PyTorch: hundreds of fragments, recompiled for minutes

    def make_test_function(self, force: bool = False) -> None:
        if self._loops is None:
            super().make_test_function(force)
        elif force or getattr(self, "test_function", None) is None:
            self.test_function = make_test_function(self)


@cache
def _name_steps(kind: str) -> None:
    _logger.info("Training steps on PyTorch: %s.", kind)


def close_name_scopes() -> None:
    """Leave every name scope of this thread."""
    with keras.name_scope("innermost") as scope:
        pass
    # Of Keras' own class: TensorFlow's, derived from it, can be left once only. It takes the last entry off the list,
    # whichever that is.
    take_last = next(kind for kind in reversed(type(scope).__mro__) if hasattr(kind, "__exit__")).__exit__
    while keras.Variable(0.0, trainable=False, name="outermost").path != "outermost":
        take_last(scope)
