"""Span boundary objective (SpanBERT): predict masked tokens from the two tokens around their span, beside masked LM."""

from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from keras_bert_flow.backends.values import Shape, Tensor
from keras_bert_flow.layers.dense import ShapedLayer, get_activation, truncated_normal
from keras_bert_flow.layers.heads import OutputBias, gather_positions
from keras_bert_flow.layers.shape import EncoderShape
from keras_bert_flow.models.backbone import Backbone
from keras_bert_flow.models.defaults import token_accuracy, token_loss
from keras_bert_flow.models.pretraining.masked_lm import MaskedLM
from keras_bert_flow.models.sizes import MAX_SPAN_TARGETS, SPAN_POSITION_DIM
from keras_bert_flow.models.with_head import ModelWithHead

PLACES = ("left_boundaries", "right_boundaries", "span_offsets")  # inputs, in the order of the layer's arguments


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class SpanBoundaryTransform(ShapedLayer):
    """Represent a masked token by the tokens around its span and its place in the span, not by its own state.

    Two dense layers, each with exact GELU and layer norm, of the two boundary states and a position embedding.

    Call arguments:
        sequence: float, (batch, length, hidden).
        left_boundaries: int, (batch, masks_per_sequence). The position before the span of each masked token.
        right_boundaries: int, (batch, masks_per_sequence). The position after it.
        span_offsets: int, (batch, masks_per_sequence). The place in the span, from 0 and below `max_targets`.
    Returns:
        float, (batch, masks_per_sequence, embedding), as wide as the token embeddings.
    Args:
        max_targets: number of position embeddings.
        position_dim: their width.
    Source: Joshi et al. 2020, section 3.2; arXiv:1907.10529.
    """

    def __init__(
        self,
        shape: EncoderShape | Mapping[str, Any],
        max_targets: int = MAX_SPAN_TARGETS,
        position_dim: int = SPAN_POSITION_DIM,
        **kwargs: Any,
    ) -> None:
        super().__init__(shape, **kwargs)
        self.max_targets, self.position_dim = max_targets, position_dim
        activation = get_activation("gelu")
        self.inner_dense = self.make_dense(self.shape.hidden_dim, "inner_dense", activation)
        self.inner_norm = self.make_layer_norm("inner_norm")
        self.outer_dense = self.make_dense(self.shape.embedding_dim, "outer_dense", activation)
        self.outer_norm = self.make_layer_norm("outer_norm")

    def build(self, sequence_shape: Shape, *shapes: Shape, **named_shapes: Shape) -> None:
        rows, hidden_dim = sequence_shape[0], self.shape.hidden_dim  # as wide as the sequence
        self.position_embedding = self.add_weight(
            shape=(self.max_targets, self.position_dim),
            initializer=truncated_normal(self.shape.initializer_range),
            name="position_embedding",
        )
        self.inner_dense.build((rows, None, 2 * hidden_dim + self.position_dim))
        self.inner_norm.build((rows, None, hidden_dim))
        self.outer_dense.build((rows, None, hidden_dim))
        self.outer_norm.build((rows, None, self.shape.embedding_dim))

    def call(self, sequence: Tensor, left_boundaries: Tensor, right_boundaries: Tensor, span_offsets: Tensor) -> Tensor:
        left, right = (gather_positions(sequence, places) for places in (left_boundaries, right_boundaries))
        table = ops.cast(self.position_embedding, sequence.dtype)
        positions = gather_positions(ops.expand_dims(table, 0), ops.reshape(span_offsets, (1, -1)))
        positions = ops.reshape(positions, (*ops.shape(span_offsets), self.position_dim))
        hidden = ops.concatenate([left, right, positions], axis=-1)  # (batch, masks, 2 hidden + position_dim)
        return self.outer_norm(self.outer_dense(self.inner_norm(self.inner_dense(hidden))))

    def compute_output_shape(self, sequence_shape: Shape, left_boundaries_shape: Shape, *shapes: Shape) -> Shape:
        return (*left_boundaries_shape, self.shape.embedding_dim)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"max_targets": self.max_targets, "position_dim": self.position_dim}


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class SpanBoundaryPretrainer(ModelWithHead):
    """SpanBERT pre-training: masked LM on spans, and the span boundary objective; objective `mlm_sbo`.

    The second head predicts each token of a masked span from the tokens before and after the span and the place in it.
    It shares the token embeddings with the first, and has its own bias. A model directory contains only the masked LM.

    Inputs: those of a `MaskedLM`, and `left_boundaries`, `right_boundaries` and `span_offsets`, int32, (batch,
    masks_per_sequence). Outputs, float32 logits, (batch, masks_per_sequence, vocabulary): `mlm`, and `sbo`, whose
    labels are the same tokens, with weight 0 for those that have no such target: see
    `text.objectives.mlm_sbo.SpanBoundary.make_batch`.

    The loss is the mean over the masked tokens plus `span_boundary_weight` times the mean over the targets of `sbo`. In
    facebookresearch/SpanBERT the second sum is divided by the number of its targets plus 1, for batches without any;
    here such a batch has the loss 0, and the loss does not depend on how a batch is split over devices.

    Args:
        backbone: built with `use_pooler=False`.
        span_boundary_weight: of the span boundary loss; the masked-LM loss has weight 1.
        tie_weights: as for `MaskedLM`, for its head.
    Raises:
        ValueError: the backbone has a pooler.
    Source: Joshi et al. 2020 (SpanBERT), section 3; arXiv:1907.10529.
    Example:
        >>> backbone = kbf.BertBackbone.from_size("tiny", vocabulary_size=50, use_pooler=False)
        >>> model = kbf.SpanBoundaryPretrainer(backbone)
        >>> model.output["mlm"].shape, model.output["sbo"].shape
        ((None, None, 50), (None, None, 50))
        >>> model.masked_lm.name
        'masked_lm'
    """

    saved_as = MaskedLM.saved_as
    default_measures = {"mlm": (token_loss, token_accuracy), "sbo": (token_loss, token_accuracy)}
    default_rate = 1e-4
    has_one_width = True
    settings = ("span_boundary_weight",)
    saved_arguments = ("span_boundary_weight", "tie_weights")

    def __init__(
        self,
        backbone: Backbone,
        span_boundary_weight: float = 1.0,
        tie_weights: bool = True,
        name: str = "span_boundary_pretrainer",
    ) -> None:
        masked_lm = MaskedLM(backbone, tie_weights)
        places = {key: keras.Input((None,), dtype="int32", name=key) for key in PLACES}
        sequence, _ = masked_lm.get_layer("mlm_transform").input
        transform = SpanBoundaryTransform(backbone.shape, dtype=backbone.dtype_policy, name="sbo_transform")
        logits = backbone.token_embedding(transform(sequence, *places.values()), reverse=True)
        sbo = OutputBias(backbone.shape.num_pieces, dtype="float32", name="sbo")(logits)
        super().__init__(backbone, masked_lm.input | places, {"mlm": masked_lm.output["mlm"], "sbo": sbo}, name)
        self.masked_lm = masked_lm
        self.saved_as = masked_lm.saved_as
        self.span_boundary_weight, self.tie_weights = span_boundary_weight, tie_weights
        self.default_loss_weights = {"mlm": 1.0, "sbo": span_boundary_weight}

    def find_published(self) -> ModelWithHead:
        return self.masked_lm
