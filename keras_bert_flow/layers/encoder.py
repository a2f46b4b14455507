"""Stack attention and feed-forward into one block."""

from functools import partial

import keras

from keras_bert_flow.layers.activations import get_activation, get_training_activation
from keras_bert_flow.layers.attention import MultiHeadSelfAttention
from keras_bert_flow.layers.dense import Dense
from keras_bert_flow.layers.dropout import Dropout
from keras_bert_flow.layers.initializers import truncated_normal
from keras_bert_flow.layers.rematerialise import rematerialise


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class EncoderBlock(keras.layers.Layer):
    """Attend, then transform each token; normalise after each residual sum, as BERT does.

    Call arguments:
        inputs: float, (batch, length, hidden).
        padding_mask: int or bool, (batch, length). 1 for a real token.
    Returns:
        float, (batch, length, hidden).
    Attributes:
        is_rematerialised: compute the block again in the backward pass of training, for memory; set it after `build`,
            before the first step. It changes no number and is not saved.
    Source: Devlin et al. 2019, section 3; google-research/bert, modeling.py, `transformer_model`.
    """

    def __init__(
        self,
        hidden_dim,
        num_heads,
        intermediate_dim,
        hidden_act="gelu",
        dropout_rate=0.1,
        attention_dropout_rate=0.1,
        layer_norm_epsilon=1e-12,
        initializer_range=0.02,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.hidden_dim = hidden_dim
        self.num_heads = num_heads
        self.intermediate_dim = intermediate_dim
        self.hidden_act = hidden_act
        self.dropout_rate = dropout_rate
        self.attention_dropout_rate = attention_dropout_rate
        self.layer_norm_epsilon = layer_norm_epsilon
        self.initializer_range = initializer_range
        self.is_rematerialised = False
        get_activation(hidden_act)  # raises where there is none
        self.attention = MultiHeadSelfAttention(
            hidden_dim,
            num_heads,
            attention_dropout_rate=attention_dropout_rate,
            initializer_range=initializer_range,
            dtype=self.dtype_policy,
            name="attention",
        )
        self.attention_dropout = self._make_dropout("attention_dropout")
        self.attention_layer_norm = self._make_layer_norm("attention_layer_norm")
        self.intermediate = self._make_dense(intermediate_dim, "intermediate")
        self.output_dense = self._make_dense(hidden_dim, "output")
        self.output_dropout = self._make_dropout("output_dropout")
        self.output_layer_norm = self._make_layer_norm("output_layer_norm")

    def build(self, inputs_shape, padding_mask_shape=None):
        self.attention.build(inputs_shape, padding_mask_shape)
        self.attention_dropout.build(inputs_shape)
        self.attention_layer_norm.build(inputs_shape)
        self.intermediate.build(inputs_shape)
        self.output_dense.build((*inputs_shape[:-1], self.intermediate_dim))
        self.output_dropout.build(inputs_shape)
        self.output_layer_norm.build(inputs_shape)

    def call(self, inputs, padding_mask, training=None):
        if training and self.is_rematerialised:
            return rematerialise(self, partial(self._transform, training=True), inputs, padding_mask)
        return self._transform(inputs, padding_mask, training)

    def _transform(self, inputs, padding_mask, training):
        attended = self.attention(inputs, padding_mask, training=training)
        hidden = self.attention_layer_norm(inputs + self.attention_dropout(attended, training=training))
        activation = (get_training_activation if training else get_activation)(self.hidden_act)
        transformed = self.output_dense(activation(self.intermediate(hidden)))
        return self.output_layer_norm(hidden + self.output_dropout(transformed, training=training))

    def _make_dense(self, units, name):
        kernel_initializer = truncated_normal(self.initializer_range)
        return Dense(units, kernel_initializer=kernel_initializer, dtype=self.dtype_policy, name=name)

    def _make_dropout(self, name):
        return Dropout(self.dropout_rate, dtype=self.dtype_policy, name=name)

    def _make_layer_norm(self, name):
        return keras.layers.LayerNormalization(epsilon=self.layer_norm_epsilon, dtype=self.dtype_policy, name=name)

    def compute_output_shape(self, inputs_shape, padding_mask_shape=None):
        return inputs_shape

    def get_config(self):
        return super().get_config() | {
            "hidden_dim": self.hidden_dim,
            "num_heads": self.num_heads,
            "intermediate_dim": self.intermediate_dim,
            "hidden_act": self.hidden_act,
            "dropout_rate": self.dropout_rate,
            "attention_dropout_rate": self.attention_dropout_rate,
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "initializer_range": self.initializer_range,
        }
