"""Drop values at random, from a seed that a checkpoint finds again."""

import random

import keras

from keras_bert_flow.backends.dropout import drop_values, dropped_steps


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class Dropout(keras.layers.Layer):
    """Set a share of the values to 0 in training and scale the others up.

    It computes what `keras.layers.Dropout` does. That layer names its seed `seed_generator_188` or so, counting all
    of the process, and the state of a model resumed in another process would not be found under its old name; here
    the seed's path starts with the layer's. Its draws are cheaper too; see `drop_values`.

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
            # Keras would draw the same seed by itself, but without one given PyTorch uses a generator of its own, whose
            # state no checkpoint has.
            self.seed_generator = keras.random.SeedGenerator(random.randint(1, 10**9), name="seed_generator")

    def call(self, inputs, training=None):
        if training and self.rate > 0:
            return drop_values(inputs, *self.draw())
        return inputs

    def draw(self):
        """Return what `drop_values` wants beside the values: a seed that no other call gets, and the rate in steps."""
        return self.seed_generator.next(), dropped_steps(self.rate)

    def compute_output_shape(self, inputs_shape):
        return inputs_shape

    def get_config(self):
        return super().get_config() | {"rate": self.rate}
