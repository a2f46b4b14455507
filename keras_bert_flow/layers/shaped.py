"""Base of the layers that are given the shape of their encoder whole."""

import keras

from keras_bert_flow.layers.dense import Dense
from keras_bert_flow.layers.dropout import Dropout
from keras_bert_flow.layers.initializers import truncated_normal
from keras_bert_flow.layers.shape import EncoderShape, describe_shape, make_shape


class ShapedLayer(keras.layers.Layer):
    """A layer of an encoder; abstract.

    Args:
        shape: an `EncoderShape`, or what `describe_shape` makes of it, as in a configuration of Keras.
    """

    def __init__(self, shape, **kwargs):
        super().__init__(**kwargs)
        self.shape = shape if isinstance(shape, EncoderShape) else make_shape(shape)

    def make_dense(self, units, name, activation=None, kind=Dense, **options):
        """Return a dense layer, or another `kind` of it, with weights as all of the encoder have them."""
        return kind(
            units,
            activation=activation,
            kernel_initializer=truncated_normal(self.shape.initializer_range),
            dtype=self.dtype_policy,
            name=name,
            **options,
        )

    def make_dropout(self, name):
        return Dropout(self.shape.dropout_rate, dtype=self.dtype_policy, name=name)

    def make_layer_norm(self, name, epsilon=None):
        """Return a layer norm; its epsilon is by default that of the encoder."""
        epsilon = self.shape.layer_norm_epsilon if epsilon is None else epsilon
        return keras.layers.LayerNormalization(epsilon=epsilon, dtype=self.dtype_policy, name=name)

    def get_config(self):
        return super().get_config() | {"shape": describe_shape(self.shape)}
