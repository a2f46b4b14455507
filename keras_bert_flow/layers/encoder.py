"""Transformer encoder block: self-attention and feed-forward."""

from functools import partial

import keras

from keras_bert_flow.layers.activations import get_activation, get_training_activation
from keras_bert_flow.layers.attention import MultiHeadSelfAttention
from keras_bert_flow.layers.initializers import lora_uniform
from keras_bert_flow.layers.query_key_value import PARTS
from keras_bert_flow.layers.rematerialise import rematerialise
from keras_bert_flow.layers.shaped import ShapedLayer


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class EncoderBlock(ShapedLayer):
    """Transformer encoder block: self-attention, then feed-forward, with post-layer normalisation as in BERT.

    Call arguments:
        inputs: float, (batch, length, hidden).
        padding_mask: int or bool, (batch, length). 1 for a real token.
    Returns:
        float, (batch, length, hidden).
    Args:
        lowest: a block to share the layers in `shared_parts` of the shape with.
    Attributes:
        is_rematerialised: recompute the block in the backward pass to save memory (gradient checkpointing). Set it
            after `build`, before the first step. It changes no result and is not saved.
    Source: Devlin et al. 2019, section 3; google-research/bert, modeling.py, `transformer_model`.
    """

    def __init__(self, shape, lowest=None, **kwargs):
        super().__init__(shape, **kwargs)
        self.is_rematerialised = False
        get_activation(self.shape.hidden_act)  # raises for an unknown name
        shared = self.shape.shared_parts if lowest is not None else ()
        if "attention" in shared:
            self.attention = lowest.attention
        else:
            self.attention = MultiHeadSelfAttention(self.shape, dtype=self.dtype_policy, name="attention")
        self.attention_dropout = self.make_dropout("attention_dropout")
        self.attention_layer_norm = self.make_layer_norm("attention_layer_norm")
        if "intermediate" in shared:
            self.intermediate, self.output_dense = lowest.intermediate, lowest.output_dense
        else:
            self.intermediate = self.make_dense(self.shape.intermediate_dim, "intermediate")
            self.output_dense = self.make_dense(self.shape.hidden_dim, "output")
        self.output_dropout = self.make_dropout("output_dropout")
        self.output_layer_norm = self.make_layer_norm("output_layer_norm")

    def build(self, inputs_shape, padding_mask_shape=None):
        if not self.attention.built:
            self.attention.build(inputs_shape, padding_mask_shape)
        self.attention_dropout.build(inputs_shape)
        self.attention_layer_norm.build(inputs_shape)
        if not self.intermediate.built:
            self.intermediate.build(inputs_shape)
            self.output_dense.build((*inputs_shape[:-1], self.shape.intermediate_dim))
        self.output_dropout.build(inputs_shape)
        self.output_layer_norm.build(inputs_shape)

    def call(self, inputs, padding_mask, training=None):
        if training and self.is_rematerialised:
            return rematerialise(self, partial(self._transform, training=True), inputs, padding_mask)
        return self._transform(inputs, padding_mask, training)

    def _transform(self, inputs, padding_mask, training):
        attended = self.attention(inputs, padding_mask, training=training)
        hidden = self.attention_layer_norm(inputs + self.attention_dropout(attended, training=training))
        activation = (get_training_activation if training else get_activation)(self.shape.hidden_act)
        transformed = self.output_dense(activation(self.intermediate(hidden)))
        return self.output_layer_norm(hidden + self.output_dropout(transformed, training=training))

    def compute_output_shape(self, inputs_shape, padding_mask_shape=None):
        return inputs_shape

    def enable_lora(self, rank, alpha, targets):
        """Add LoRA to the targets; see `models.lora.enable_lora`. Layers that blocks share get it once."""
        attention, parts = self.attention, [part for part in PARTS if part in targets]
        layers = [(attention.query_key_value, {"parts": parts})] if parts else []
        layers += [(attention.output_dense, {})] if "attention_output" in targets else []
        layers += [(self.intermediate, {}), (self.output_dense, {})] if "feed_forward" in targets else []
        for layer, options in layers:
            if not layer.lora_enabled:
                layer.enable_lora(rank, alpha, lora_uniform, **options)

    def list_matrices(self):
        """Return path → number of heads for the weight matrices; 0 for all but the fused query, key and value."""
        paths = {weight.path: 0 for weight in self.weights if len(weight.shape) == 2}
        return paths | {self.attention.query_key_value.kernel.path: self.shape.num_heads}


def make_blocks(shape, dtype, name):
    """Return a block for each layer of an encoder, in order.

    If `shape.num_blocks` is less than the number of layers, consecutive layers share a block.

    Args:
        name: prefix of the names of the blocks, which their numbers follow.
    """
    blocks = [EncoderBlock(shape, dtype=dtype, name=f"{name}0")]
    blocks += [EncoderBlock(shape, blocks[0], dtype=dtype, name=f"{name}{n}") for n in range(1, shape.num_blocks)]
    return [blocks[index * shape.num_blocks // shape.num_layers] for index in range(shape.num_layers)]
