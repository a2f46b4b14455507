"""Dropout layer whose seed has a stable path in checkpoints."""

import random

import keras

from keras_bert_flow.backends.dropout import drop_values, dropped_steps


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class Dropout(keras.layers.Layer):
    """Dropout: set a fraction of the values to 0 in training and scale up the others.

    It computes the same as `keras.layers.Dropout`. That layer names its seed `seed_generator_188` or so, by a counter
    of the process, so a model resumed in another process would not find its state under the old name. Here the path of
    the seed starts with that of the layer. The random numbers are cheaper too; see `drop_values`.

    Raises:
        ValueError: `rate` is not in [0, 1).
    """

    def __init__(self, rate, **kwargs):
        super().__init__(**kwargs)
        if not 0 <= rate < 1:
            raise ValueError(f"A dropout rate must be at least 0 and below 1. Received: rate={rate}. Try 0.1.")
        self.rate = rate

    def build(self, inputs_shape):
        if self.rate > 0:
            # Keras would draw the same seed by default, but without an explicit one PyTorch uses its own generator,
            # whose state is in no checkpoint.
            self.seed_generator = keras.random.SeedGenerator(random.randint(1, 10**9), name="seed_generator")

    def call(self, inputs, training=None):
        if training and self.rate > 0:
            return drop_values(inputs, *self.draw())
        return inputs

    def draw(self):
        """Return the further arguments of `drop_values`: a seed that no other call gets, and the rate in steps."""
        return self.seed_generator.next(), dropped_steps(self.rate)

    def compute_output_shape(self, inputs_shape):
        return inputs_shape

    def get_config(self):
        return super().get_config() | {"rate": self.rate}
