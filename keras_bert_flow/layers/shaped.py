"""Base class of the encoder layers, which take the shape of their encoder."""

import keras

from keras_bert_flow.layers.dense import Dense
from keras_bert_flow.layers.dropout import Dropout
from keras_bert_flow.layers.initializers import truncated_normal
from keras_bert_flow.layers.shape import EncoderShape, describe_shape, make_shape


class ShapedLayer(keras.layers.Layer):
    """Base class of encoder layers; abstract.

    Args:
        shape: an `EncoderShape`, or its serialised form (`describe_shape`), as in a Keras config.
    """

    def __init__(self, shape, **kwargs):
        super().__init__(**kwargs)
        self.shape = shape if isinstance(shape, EncoderShape) else make_shape(shape)

    def make_dense(self, units, name, activation=None, kind=Dense, **options):
        """Return a dense layer, or another class `kind`, with the kernel initializer of the encoder."""
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
        """Return a layer norm. Default epsilon: that of the encoder."""
        epsilon = self.shape.layer_norm_epsilon if epsilon is None else epsilon
        return keras.layers.LayerNormalization(epsilon=epsilon, dtype=self.dtype_policy, name=name)

    def get_config(self):
        return super().get_config() | {"shape": describe_shape(self.shape)}
