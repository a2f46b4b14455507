"""Layers that remove padding before the encoder blocks and restore it after them."""

import keras

from keras_bert_flow.backends.token_packing import is_packable, is_packed, pack_tokens, unpack_tokens


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class PackTokens(keras.layers.Layer):
    """Remove padding from a batch for the encoder blocks, in training, if `is_packable`.

    Dense layers, layer norms and dropout then spend no time on padding; attention unpacks the rows again. The output
    for a real token does not depend on padding, so outputs and gradients are the same.

    Call arguments:
        hidden: float, (batch, length, units).
        padding_mask: int or bool, (batch, length). 1 for a real token.
    Returns:
        float, (tokens, units), or `hidden` unchanged.
    """

    def build(self, hidden_shape, padding_mask_shape=None):
        pass

    def call(self, hidden, padding_mask, training=None):
        return pack_tokens(hidden, padding_mask) if training and is_packable(padding_mask) else hidden

    def compute_output_shape(self, hidden_shape, padding_mask_shape=None):
        return hidden_shape


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class UnpackTokens(keras.layers.Layer):
    """Invert `PackTokens`: return (batch, length, units) with zeros for padding."""

    def build(self, hidden_shape, padding_mask_shape=None):
        pass

    def call(self, hidden, padding_mask):
        return unpack_tokens(hidden, padding_mask) if is_packed(hidden) else hidden

    def compute_output_shape(self, hidden_shape, padding_mask_shape=None):
        return hidden_shape
