"""Transformer encoder block, and grouping of the texts of a batch."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import keras
from keras import ops

from keras_bert_flow.backends.kernels import add_and_norm, call_of
from keras_bert_flow.backends.values import Shape, Tensor
from keras_bert_flow.layers.attention import MultiHeadSelfAttention, keeping_scores
from keras_bert_flow.layers.dense import Dense, ShapedLayer, gate, get_activation, lora_uniform, rematerialise
from keras_bert_flow.layers.masks import MASKED_SCORE
from keras_bert_flow.layers.patterns import FULL, LEARNED, PATTERNS, POSITIONS, Full, Learned, describe_kind, make_kind
from keras_bert_flow.layers.shape import EncoderShape

# Encode several texts per row: merge them into the batch axis, and split the outputs again.


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class MergeTexts(keras.layers.Layer):
    """Merge the texts of each row into the batch axis: (batch, texts, length) → (batch * texts, length)."""

    def build(self, inputs_shape: Shape) -> None:
        pass

    def call(self, inputs: Tensor) -> Tensor:
        return ops.reshape(inputs, (-1, ops.shape(inputs)[-1]))

    def compute_output_shape(self, inputs_shape: Shape) -> Shape:
        batch, texts, length = inputs_shape
        return (None if batch is None or texts is None else batch * texts, length)


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class ChoiceScores(keras.layers.Layer):
    """Split the logits of merged texts by row; a text without tokens is filler and gets `MASKED_SCORE`.

    Call arguments:
        logits: float, (batch * choices, 1).
        padding_mask: int or bool, (batch, choices, length). 1 for a real token.
    Returns:
        float, (batch, choices).
    """

    def build(self, logits_shape: Shape, padding_mask_shape: Shape | None = None) -> None:
        pass

    def call(self, logits: Tensor, padding_mask: Tensor) -> Tensor:
        is_text = ops.any(ops.cast(padding_mask, "bool"), axis=-1)  # (batch, choices)
        scores = ops.reshape(logits, ops.shape(is_text))
        return ops.where(is_text, scores, ops.cast(MASKED_SCORE, scores.dtype))

    def compute_output_shape(self, logits_shape: Shape, padding_mask_shape: Shape) -> Shape:
        return tuple(padding_mask_shape[:2])


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class SplitTexts(keras.layers.Layer):
    """Split the vectors of merged texts by row: (batch * texts, hidden) → (batch, texts, hidden).

    Call arguments:
        vectors: float, (batch * texts, hidden).
        padding_mask: int or bool, (batch, texts, length). Gives the number of texts per row.
    """

    def build(self, vectors_shape: Shape, padding_mask_shape: Shape | None = None) -> None:
        pass

    def call(self, vectors: Tensor, padding_mask: Tensor) -> Tensor:
        return ops.reshape(vectors, (-1, ops.shape(padding_mask)[1], vectors.shape[-1]))

    def compute_output_shape(self, vectors_shape: Shape, padding_mask_shape: Shape) -> Shape:
        return (*padding_mask_shape[:2], vectors_shape[-1])


class Block(ShapedLayer):
    """Base class of encoder blocks; abstract.

    Subclasses set `attention`, and define `build`, `transform`, which computes the block, and `list_feed_forward`.

    Call arguments:
        inputs: float, (batch, length, hidden), or tokens without padding, (tokens, hidden); see `UnpadInputs`.
        padding_mask: int or bool, (batch, length). The number of each token's text in its row, 0 for padding.
        bias: `make_bias` of the mask and the pattern, if it is computed once for several blocks.
        relative: float, (rows, hidden). Vectors of relative positions, for blocks that take them.
    Returns:
        float, the shape of the inputs.
    Args:
        pattern, positions: of the attention; see `MultiHeadSelfAttention`.
    Attributes:
        is_rematerialised: recompute the block in the backward pass to save memory; see `Backbone.set_rematerialised`.
    """

    attention: MultiHeadSelfAttention

    def __init__(
        self,
        shape: EncoderShape | Mapping[str, Any],
        pattern: Full | Mapping[str, Any] = FULL,
        positions: Learned | Mapping[str, Any] = LEARNED,
        **kwargs: Any,
    ) -> None:
        super().__init__(shape, **kwargs)
        self.pattern, self.positions = make_kind(pattern, PATTERNS), make_kind(positions, POSITIONS)
        self.is_rematerialised = False
        get_activation(self.shape.hidden_act)  # raises for an unknown name

    def call(
        self,
        inputs: Tensor,
        padding_mask: Tensor,
        bias: Tensor | None = None,
        relative: Tensor | None = None,
        training: bool | None = None,
    ) -> Tensor:
        given = {} if relative is None else {"relative": relative}
        if training and self.is_rematerialised:
            given |= {} if bias is None else {"bias": bias}
            return rematerialise(self, partial(self.transform, training=True), inputs, padding_mask, **given)
        return self.transform(inputs, padding_mask, bias, training, **given)

    def transform(
        self, inputs: Tensor, padding_mask: Tensor, bias: Tensor | None = None, training: bool | None = None
    ) -> Tensor:
        raise NotImplementedError

    def list_feed_forward(self) -> list[Dense]:
        """Return the layers of the feed-forward, which the LoRA target of this name means."""
        raise NotImplementedError

    def compute_output_shape(self, inputs_shape: Shape, *other_shapes: Shape, **named_shapes: Shape) -> Shape:
        return inputs_shape

    def get_config(self) -> dict[str, Any]:
        kinds = {"pattern": describe_kind(self.pattern), "positions": describe_kind(self.positions)}
        return super().get_config() | kinds

    def enable_lora(self, rank: int, alpha: float, targets: Sequence[str]) -> None:
        """Add LoRA to the targets; see `Backbone.enable_lora`. Layers that blocks share get it once."""
        layers = self.attention.list_lora_layers(targets)
        layers += [(layer, {}) for layer in self.list_feed_forward() if "feed_forward" in targets]
        for layer, options in layers:
            if not layer.lora_enabled:
                layer.enable_lora(rank, alpha, lora_uniform, **options)

    def list_matrices(self) -> dict[str, int]:
        """Return path → number of heads for the weight matrices; 0 for all but the fused query, key and value."""
        paths = {weight.path: 0 for weight in self.weights if len(weight.shape) == 2}
        if self.shape.has_own_values:
            return paths
        return paths | {self.attention.query_key_value.kernel.path: self.shape.num_heads}


def make_feed_forward(layer: ShapedLayer) -> tuple[Dense, Dense]:
    """Return the two dense layers of a feed-forward, `intermediate` and `output`, which `activate` stands between."""
    shape = layer.shape
    intermediate = layer.make_dense(shape.feed_forward_dim, "intermediate", use_bias=shape.feed_forward_bias)
    output = layer.make_dense(shape.hidden_dim, "output", is_output=True, use_bias=shape.feed_forward_bias)
    return intermediate, output


def activate(layer: ShapedLayer, fused: Tensor, training: bool | None) -> Tensor:
    """Return the activation of a feed-forward's first product, gated if the shape says so.

    Args:
        fused: float, (..., `feed_forward_dim`).
    Returns:
        float, (..., intermediate).
    """
    shape = layer.shape
    activation = get_activation(shape.hidden_act, is_for_training=bool(training))
    return gate(fused, shape.gate_groups, activation) if shape.is_gated else activation(fused)


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class EncoderBlock(Block):
    """Transformer encoder block: self-attention, then feed-forward, with post-layer normalisation as in BERT.

    Args:
        lowest: a block to share the layers in `shared_parts` of the shape with.
        pattern, positions: of the attention; see `MultiHeadSelfAttention`.
    Source: Devlin et al. 2019, section 3; google-research/bert, modeling.py, `transformer_model`.
    """

    def __init__(
        self,
        shape: EncoderShape | Mapping[str, Any],
        lowest: "EncoderBlock | None" = None,
        pattern: Full | Mapping[str, Any] = FULL,
        positions: Learned | Mapping[str, Any] = LEARNED,
        **kwargs: Any,
    ) -> None:
        super().__init__(shape, pattern, positions, **kwargs)
        shared = self.shape.shared_parts
        if lowest is not None and "attention" in shared:
            self.attention = lowest.attention
        else:
            self.attention = MultiHeadSelfAttention(
                self.shape, self.pattern, self.positions, dtype=self.dtype_policy, name="attention"
            )
        self.attention_dropout = self.make_dropout("attention_dropout")
        self.attention_layer_norm = self.make_layer_norm("attention_layer_norm")
        self.intermediate: Dense
        self.output_dense: Dense
        if lowest is not None and "intermediate" in shared:
            self.intermediate, self.output_dense = lowest.intermediate, lowest.output_dense
        else:
            self.intermediate, self.output_dense = make_feed_forward(self)
        self.output_dropout = self.make_dropout("output_dropout")
        self.output_layer_norm = self.make_layer_norm("output_layer_norm")

    def build(self, inputs_shape: Shape, *other_shapes: Shape, **named_shapes: Shape) -> None:
        if not self.attention.built:
            self.attention.build(inputs_shape)
        self.attention_dropout.build(inputs_shape)
        self.attention_layer_norm.build(inputs_shape)
        if not self.intermediate.built:
            self.intermediate.build(inputs_shape)
            self.output_dense.build((*inputs_shape[:-1], self.shape.intermediate_dim))
        self.output_dropout.build(inputs_shape)
        self.output_layer_norm.build(inputs_shape)

    def transform(
        self,
        inputs: Tensor,
        padding_mask: Tensor,
        bias: Tensor | None = None,
        training: bool | None = None,
        relative: Tensor | None = None,
    ) -> Tensor:
        given = {} if relative is None else {"relative": relative}
        attended = call_of(self.attention)(inputs, padding_mask, bias, training=training, **given)
        hidden = add_and_norm(inputs, attended, self.attention_layer_norm, self.attention_dropout.draw(training))
        transformed = call_of(self.output_dense)(activate(self, call_of(self.intermediate)(hidden), training))
        return add_and_norm(hidden, transformed, self.output_layer_norm, self.output_dropout.draw(training))

    def list_feed_forward(self) -> list[Dense]:
        return [self.intermediate, self.output_dense]


def make_blocks(shape: EncoderShape, dtype: Any, name: str) -> list[EncoderBlock]:
    """Return a block for each layer of an encoder, in order.

    If `shape.num_blocks` is less than the number of layers, consecutive layers share a block.

    Args:
        name: prefix of the names of the blocks, which their numbers follow.
    """
    blocks: list[EncoderBlock] = []
    for number in range(shape.num_blocks):
        kinds = shape.find_pattern(number), shape.find_positions(number)
        blocks.append(EncoderBlock(shape, blocks[0] if blocks else None, *kinds, dtype=dtype, name=f"{name}{number}"))
    return [blocks[index * shape.num_blocks // shape.num_layers] for index in range(shape.num_layers)]


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class ScoredBlock(keras.layers.Layer):
    """An encoder block that also outputs the scores of its attention, which are computed once.

    Args:
        block: the block, which keeps its weights and their paths.
    Call arguments: those of the block, with padding.
    Returns:
        The output of the block; and the scores before the softmax, with the bias of the mask added, float32, (batch,
        heads, query, key).
    """

    def __init__(self, block: Block, **kwargs: Any) -> None:
        super().__init__(**{"dtype": block.dtype_policy} | kwargs)  # inputs are cast as those of the block
        self.block = block

    def build(self, inputs_shape: Shape, *other_shapes: Shape, **named_shapes: Shape) -> None:
        if not self.block.built:
            self.block.build(inputs_shape)

    def call(
        self,
        inputs: Tensor,
        padding_mask: Tensor,
        bias: Tensor | None = None,
        relative: Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[Tensor, Tensor]:
        given = {} if relative is None else {"relative": relative}
        with keeping_scores() as kept:
            hidden = self.block.transform(inputs, padding_mask, bias, training, **given)
        return hidden, kept[0]

    def compute_output_spec(
        self,
        inputs: Tensor,
        padding_mask: Tensor,
        bias: Tensor | None = None,
        relative: Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[Tensor, Tensor]:
        batch, length, _ = inputs.shape
        scores = (batch, self.block.shape.num_heads, length, length)
        return keras.KerasTensor(inputs.shape, self.compute_dtype), keras.KerasTensor(scores, "float32")

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"block": keras.saving.serialize_keras_object(self.block)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "ScoredBlock":
        return cls(**config | {"block": keras.saving.deserialize_keras_object(config["block"])})


# Scan over layers: one block in the program, in a loop over the weights of all.


def scan_blocks(
    blocks: Sequence[Block], hidden: Tensor, padding_mask: Tensor, bias: Tensor, training: bool | None = None
) -> Tensor:
    """Apply blocks one after another as a scan of the first over the weights and dropout seeds of all.

    A compiler then sees one block instead of many. The values are those of calling the blocks in turn. Weights are
    stacked in the type that the blocks compute in, so autocasting must be on as in the call of a block.

    Args:
        blocks: built, with weights of the same names, shapes and types, none of them shared; see
            `EncoderShape.is_uniform`.
        hidden: float, (batch, length, hidden).
        padding_mask, bias: call arguments of each block.
    """
    block = blocks[0]
    weights = [ops.stack(values) for values in zip(*(each.weights for each in blocks), strict=True)]
    known = {id(weight) for each in blocks for weight in each.weights}
    states_of = ([variable for variable in each.variables if id(variable) not in known] for each in blocks)
    groups = [*zip(*states_of, strict=True)] if training else []  # states of the dropout seeds of each block
    seeds = [ops.stack([seed.value for seed in group]) for group in groups]
    variables = [*block.weights, *(group[0] for group in groups)]

    def step(hidden: Tensor, values: tuple[list[Tensor], list[Tensor]]) -> tuple[Tensor, list[Tensor]]:
        mapping = zip(variables, (*values[0], *values[1]), strict=True)
        with keras.StatelessScope(state_mapping=mapping) as scope:
            hidden = block(hidden, padding_mask, bias, training=training)
        return hidden, [scope.get_current_value(group[0]) for group in groups]

    hidden, states = ops.scan(step, ops.cast(hidden, block.compute_dtype), (weights, seeds))
    for group, values in zip(groups, states, strict=True):
        for number, seed in enumerate(group):
            seed.assign(values[number])
    return hidden
