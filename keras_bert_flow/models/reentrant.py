"""Base class of all models: prediction and evaluation survive threads, Ctrl-C and other exceptions."""

import threading

import keras

from keras_bert_flow.backends.stateless_loops import StatelessLoops, keeping_grad_mode, make_test_function


class ReentrantModel(keras.Model):
    """Functional model that several threads may call, `predict` and `evaluate`, on every backend.

    None of these calls changes a weight at any moment, so an exception in one, such as KeyboardInterrupt, has no effect
    on later calls. The metrics of the model are shared, so evaluations wait for each other. `fit` and `train_on_batch`
    are as in Keras: one thread at a time, and no other call meanwhile.

    Not an `abc.ABC`, because Keras instantiates every class between `keras.Model` and a model to insert `Functional`.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._evaluating = threading.RLock()
        self._loops = StatelessLoops(self) if keras.backend.backend() == "jax" else None

    def compile(self, *args, **kwargs):
        super().compile(*args, **kwargs)
        if keras.backend.backend() == "jax":
            self._loops = StatelessLoops(self)

    def predict_on_batch(self, x):
        with keeping_grad_mode():
            return super().predict_on_batch(x) if self._loops is None else self._loops.predict_on_batch(x)

    def predict(self, x, batch_size=None, verbose="auto", steps=None, callbacks=None):
        options = {"batch_size": batch_size, "verbose": verbose, "steps": steps, "callbacks": callbacks}
        with keeping_grad_mode():
            return super().predict(x, **options) if self._loops is None else self._loops.predict(x, **options)

    def evaluate(self, x=None, y=None, *args, **kwargs):
        # Inside `fit` Keras passes its own argument, and the state of the training is not in the variables.
        is_inner = any(name.startswith("_") for name in kwargs)
        with self._evaluating, keeping_grad_mode():
            if self._loops is None or is_inner or not self.compiled:
                return super().evaluate(x, y, *args, **kwargs)
            return self._loops.evaluate(x, y, *args, **kwargs)

    def test_on_batch(self, *args, **kwargs):
        with self._evaluating, keeping_grad_mode():
            if self._loops is None or not self.compiled:
                return super().test_on_batch(*args, **kwargs)
            return self._loops.test_on_batch(*args, **kwargs)

    def make_test_function(self, force=False):
        if self._loops is None:
            super().make_test_function(force)
        elif force or getattr(self, "test_function", None) is None:
            self.test_function = make_test_function(self)
