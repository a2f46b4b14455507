"""Knowledge distillation of an encoder, with or without its masked-LM head, from a larger one."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import keras
from keras import ops

from keras_bert_flow.backends.fused import divergences, is_computable
from keras_bert_flow.backends.values import Shape, Tensor
from keras_bert_flow.layers.dense import Dense, truncated_normal
from keras_bert_flow.models.backbone import INPUT_NAMES, Backbone, PresetModel, refuse_pooler
from keras_bert_flow.models.defaults import token_accuracy, token_loss
from keras_bert_flow.models.reentrant import ReentrantModel
from keras_bert_flow.models.sizes import check_teacher, map_layers
from keras_bert_flow.models.with_head import ModelWithHead

LEAST_SCORE = -100.0  # attention scores down to it are those of masked keys
SMALLEST_SQUARE = 1e-12  # lower bound of the squared norms, since padding may have zero vectors


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class SoftTargetLosses(keras.layers.Layer):
    """Soft-target distillation loss: the Kullback-Leibler divergence of the student's prediction from the teacher's.

    Both are softened by a temperature. The loss is multiplied by its square, so that gradients keep their magnitude.

    Call arguments:
        logits: float32, (batch, masks_per_sequence, vocabulary). The student's.
        targets: the teacher's, of the same shape.
    Returns:
        float32, (batch, masks_per_sequence, 1).
    Source: Hinton et al. 2015, section 2; arXiv:1503.02531.
    """

    def __init__(self, temperature: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.temperature = temperature

    def build(self, logits_shape: Shape, targets_shape: Shape | None = None) -> None:
        pass

    def call(self, logits: Tensor, targets: Tensor) -> Tensor:
        targets = ops.stop_gradient(targets)
        if is_computable(logits):
            divergence = divergences(logits, targets, self.temperature)[..., None]
        else:
            logits, targets = logits / self.temperature, targets / self.temperature
            shares, guesses = ops.log_softmax(targets, axis=-1), ops.log_softmax(logits, axis=-1)
            divergence = ops.sum(ops.exp(shares) * (shares - guesses), axis=-1, keepdims=True)
        return divergence * self.temperature**2

    def compute_output_shape(self, logits_shape: Shape, targets_shape: Shape | None = None) -> Shape:
        return (*logits_shape[:-1], 1)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"temperature": self.temperature}


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class HiddenStateLosses(keras.layers.Layer):
    """Hidden-state distillation loss: 1 - cosine of the student's and the teacher's vectors of each token.

    Call arguments:
        hidden: float, (batch, length, hidden). The student's.
        targets: the teacher's, of the same shape.
    Returns:
        float32, (batch, length, 1).
    """

    def build(self, hidden_shape: Shape, targets_shape: Shape | None = None) -> None:
        pass

    def call(self, hidden: Tensor, targets: Tensor) -> Tensor:
        hidden, targets = (ops.cast(value, "float32") for value in (hidden, ops.stop_gradient(targets)))
        products = ops.sum(hidden * targets, axis=-1, keepdims=True)
        squares = [ops.sum(ops.square(value), axis=-1, keepdims=True) for value in (hidden, targets)]
        return 1.0 - products * ops.rsqrt(ops.maximum(squares[0] * squares[1], SMALLEST_SQUARE))

    def compute_output_shape(self, hidden_shape: Shape, targets_shape: Shape | None = None) -> Shape:
        return (*hidden_shape[:-1], 1)


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class AttentionScoreLosses(keras.layers.Layer):
    """Attention distillation loss: the mean squared error of the scores before the softmax, summed over layers.

    Scores of masked keys are 0 in both models. They count in the mean, over the heads and all pairs of places of a row.

    Call arguments:
        scores: list of float32, (batch, heads, query, key). The student's, with the bias of the mask.
        targets: those of the layers of the teacher that they are compared with.
    Returns:
        float32, (batch, 1, 1).
    Source: Jiao et al. 2020 (TinyBERT), equation 7, arXiv:1909.10351; their code for masked keys.
    """

    def build(self, scores_shape: Sequence[Shape], targets_shape: Sequence[Shape] | None = None) -> None:
        pass

    def call(self, scores: Sequence[Tensor], targets: Sequence[Tensor]) -> Tensor:
        total: Any = 0.0
        for ours, theirs in zip(scores, targets, strict=True):
            difference = _clear_masked(ours) - _clear_masked(ops.stop_gradient(theirs))
            total = total + ops.mean(ops.square(difference), axis=(1, 2, 3))
        return ops.expand_dims(total, (1, 2))

    def compute_output_shape(
        self, scores_shape: Sequence[Shape], targets_shape: Sequence[Shape] | None = None
    ) -> Shape:
        return (scores_shape[0][0], 1, 1)


def _clear_masked(scores: Tensor) -> Tensor:
    return ops.where(scores > LEAST_SCORE, scores, ops.zeros_like(scores))


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class LayerStateLosses(keras.layers.Layer):
    """Hidden-state distillation loss of all layers: the mean squared error of each, summed over layers.

    One projection, with a bias, maps the states of all layers to the width of the teacher, the embeddings as well. The
    mean is over all places of a row, padding too.

    Args:
        units: width of the teacher.
        initializer_range: standard deviation of the initial projection.
        projection_dtype: dtype policy of the projection. Default: that of the layer.
    Call arguments:
        hidden: list of float, (batch, length, hidden). The student's: the embeddings, and the output of each layer.
        targets: those of the layers of the teacher that they are compared with, (batch, length, units).
    Returns:
        float32, (batch, 1, 1).
    Source: Jiao et al. 2020 (TinyBERT), equations 8 and 9, arXiv:1909.10351; that the projection is shared and has a
        bias is in their code.
    """

    def __init__(
        self, units: int, initializer_range: float = 0.02, projection_dtype: Any = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.units, self.initializer_range = units, initializer_range
        initializer = truncated_normal(initializer_range)
        policy = projection_dtype or self.dtype_policy
        self.projection = Dense(units, kernel_initializer=initializer, dtype=policy, name="projection")

    def build(self, hidden_shape: Sequence[Shape], targets_shape: Sequence[Shape] | None = None) -> None:
        self.projection.build(hidden_shape[0])

    def call(self, hidden: Sequence[Tensor], targets: Sequence[Tensor]) -> Tensor:
        total: Any = 0.0
        for ours, theirs in zip(hidden, targets, strict=True):
            projected = ops.cast(self.projection(ours), "float32")
            difference = projected - ops.cast(ops.stop_gradient(theirs), "float32")
            total = total + ops.mean(ops.square(difference), axis=(1, 2))
        return ops.expand_dims(total, (1, 2))

    def compute_output_shape(
        self, hidden_shape: Sequence[Shape], targets_shape: Sequence[Shape] | None = None
    ) -> Shape:
        return (hidden_shape[0][0], 1, 1)

    def get_config(self) -> dict[str, Any]:
        own = {"units": self.units, "initializer_range": self.initializer_range}
        policy = keras.saving.serialize_keras_object(self.projection.dtype_policy)
        return super().get_config() | own | {"projection_dtype": policy}


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class FeatureMapLosses(keras.layers.Layer):
    """Feature map transfer: the mean squared error of the outputs of each layer, over the real tokens of a row.

    Call arguments:
        hidden: list of float, (batch, length, hidden). The student's outputs of each layer.
        targets: the teacher's, of the same shapes.
        padding_mask: int or bool, (batch, length). Above 0 for a real token.
    Returns:
        float32, (batch, layers, 1).
    Source: Sun et al. 2020 (MobileBERT), section 3.4, arXiv:2004.02984. Their code compares the maps after a layer norm
        without weights, and their means and variances in two further losses.
    """

    def build(self, hidden_shape: Sequence[Shape], *others: Any) -> None:
        pass

    def call(self, hidden: Sequence[Tensor], targets: Sequence[Tensor], padding_mask: Tensor) -> Tensor:
        differences = [
            ops.cast(ours, "float32") - ops.cast(ops.stop_gradient(theirs), "float32")
            for ours, theirs in zip(hidden, targets, strict=True)
        ]
        return _average_tokens([ops.mean(ops.square(each), axis=-1) for each in differences], padding_mask)

    def compute_output_shape(self, hidden_shape: Sequence[Shape], *others: Any) -> Shape:
        return (hidden_shape[0][0], len(hidden_shape), 1)


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class AttentionMapLosses(keras.layers.Layer):
    """Attention transfer: the Kullback-Leibler divergence of attention probabilities from the teacher's, in each layer.

    It is a mean over the heads and the real tokens of a row that attend. Masked keys have the probability 0.

    Call arguments:
        scores: list of float32, (batch, heads, query, key). The student's, with the bias of the mask.
        targets: the teacher's, of the same shapes.
        padding_mask: int or bool, (batch, length). Above 0 for a real token.
    Returns:
        float32, (batch, layers, 1).
    Source: Sun et al. 2020 (MobileBERT), section 3.4, arXiv:2004.02984. Their code has the cross-entropy, of the same
        gradient, and averages over padding too.
    """

    def build(self, scores_shape: Sequence[Shape], *others: Any) -> None:
        pass

    def call(self, scores: Sequence[Tensor], targets: Sequence[Tensor], padding_mask: Tensor) -> Tensor:
        of_tokens = []
        for ours, theirs in zip(scores, targets, strict=True):
            shares, guesses = ops.log_softmax(ops.stop_gradient(theirs), axis=-1), ops.log_softmax(ours, axis=-1)
            divergence = ops.sum(ops.exp(shares) * (shares - guesses), axis=-1)  # (batch, heads, query)
            of_tokens.append(ops.mean(divergence, axis=1))
        return _average_tokens(of_tokens, padding_mask)

    def compute_output_shape(self, scores_shape: Sequence[Shape], *others: Any) -> Shape:
        return (scores_shape[0][0], len(scores_shape), 1)


def _average_tokens(losses: Sequence[Tensor], padding_mask: Tensor) -> Tensor:
    """Return the mean over the real tokens of each row, (batch, layers, 1), of losses per layer, (batch, length)."""
    is_real = ops.cast(ops.cast(padding_mask, "int32") > 0, "float32")
    count = ops.maximum(ops.sum(is_real, axis=1), 1.0)
    return ops.stack([ops.sum(each * is_real, axis=1) / count for each in losses], axis=1)[..., None]


def encode_scored(model: PresetModel, inputs: Mapping[str, Tensor], name: str, **options: Any) -> dict[str, Any]:
    """Return the outputs of `Backbone.make_scored_model`, the last hidden states as `sequence`, and those of a head.

    Args:
        model: an encoder, or a `MaskedLM`, whose head is applied to the hidden states that are returned.
        inputs: of the model.
        name: of the model in that which calls it.
        options: `training` of the calls.
    """
    scored = find_encoder(model).make_scored_model(name)
    outputs = scored({name: inputs[name] for name in INPUT_NAMES}, **options)
    outputs = outputs | {"sequence": outputs["hidden_states"][-1]}
    if isinstance(model, Backbone):
        return outputs
    sequence, positions = model.get_layer("mlm_transform").input
    head = ReentrantModel([sequence, positions], model.output["mlm"], name=f"{name}_head")
    return outputs | {"mlm": head([outputs["sequence"], inputs["mask_positions"]], **options)}


def find_encoder(model: PresetModel) -> Backbone:
    """Return an encoder itself, or that of a model with a head."""
    encoder: Any = getattr(model, "backbone", model)
    return encoder


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class Distiller(ModelWithHead):
    """Distil a student from a teacher: soft targets of masked tokens, the masked tokens, hidden states, attention.

    Inputs: those of the student. Outputs: `mlm` of a `MaskedLM`; `soft`, float32, (batch, masks_per_sequence, 1),
    `hidden`, float32, (batch, length, 1), `attention` and `layers`, float32, (batch, 1, 1), and `feature_map` and
    `attention_map`, float32, (batch, layers, 1), which are losses themselves. A weight of 0 removes the output, except
    `mlm`. The teacher is not trained, has no dropout, and is not saved in checkpoints.

    Args:
        student: a `MaskedLM`; the model that is published. An encoder without a pooler if layers alone are compared.
        teacher: of the same kind, with the same vocabulary, and the same width if last hidden states are compared.
        temperature: of the soft targets.
        soft_target_weight, masked_lm_weight, hidden_state_weight: of the three losses of DistilBERT.
        attention_score_weight: of the squared error of attention scores, which both must have of as many heads.
        layer_state_weight: of the squared error of the embeddings and the hidden states of all layers of the student,
            after one projection, which is trained and not published. For either, the layers of the student are compared
            with evenly spaced ones of the teacher, so their number must divide that of the teacher.
        feature_map_weight, attention_map_weight: of the squared error of the outputs of each layer, and of the
            divergence of its attention probabilities. Both models must have as many layers, of the same width or
            number of heads.
    Raises:
        ValueError: the vocabularies, the widths, the numbers of heads or those of layers differ, or an encoder has a
            loss that needs a head.
    Source: Sanh et al. 2019, section 3, arXiv:1910.01108. Here soft targets are computed for masked tokens only, since
        only these are projected to the vocabulary. Jiao et al. 2020 (TinyBERT), section 3.1, arXiv:1909.10351, for the
        losses of scores and states; Sun et al. 2020 (MobileBERT), section 3.4, arXiv:2004.02984, for those of maps.
    Example:
        >>> teacher = kbf.MaskedLM(kbf.BertBackbone.from_size("tiny", 50, use_pooler=False))
        >>> student = kbf.MaskedLM(kbf.BertBackbone.from_size("tiny", 50, use_pooler=False, num_layers=1))
        >>> model = kbf.Distiller(student, teacher)
        >>> sorted(model.output)
        ['hidden', 'mlm', 'soft']
    """

    default_rate = 5e-4
    has_one_width = True
    takes_packed_rows = True

    def __init__(
        self,
        student: PresetModel,
        teacher: PresetModel,
        temperature: float = 2.0,
        soft_target_weight: float = 5.0,
        masked_lm_weight: float = 2.0,
        hidden_state_weight: float = 1.0,
        name: str = "distiller",
        attention_score_weight: float = 0.0,
        layer_state_weight: float = 0.0,
        feature_map_weight: float = 0.0,
        attention_map_weight: float = 0.0,
    ) -> None:
        backbone, known = find_encoder(student), find_encoder(teacher)
        of_layers = (attention_score_weight, layer_state_weight)
        of_maps = (feature_map_weight, attention_map_weight)
        check_teacher(
            backbone,
            known,
            hidden_state_weight,
            *of_layers,
            feature_map_weight=feature_map_weight,
            attention_map_weight=attention_map_weight,
        )
        if student is backbone:
            refuse_pooler(backbone)
            if soft_target_weight or masked_lm_weight:
                raise ValueError(
                    "A student without a masked-LM head must have no loss of its predictions. Received: "
                    f"soft_target_weight={soft_target_weight}, masked_lm_weight={masked_lm_weight}. Set both to 0, or "
                    "give a MaskedLM."
                )
        teacher.trainable = False
        encode_both = encode_scored if any((*of_layers, *of_maps)) else _encode
        ours = encode_both(student, student.input, "student")
        targets = encode_both(teacher, student.input, "teacher", training=False)
        weights = {"mlm": masked_lm_weight, "soft": soft_target_weight, "hidden": hidden_state_weight}
        weights |= {"attention": attention_score_weight, "layers": layer_state_weight}
        weights |= {"feature_map": feature_map_weight, "attention_map": attention_map_weight}
        outputs = {"mlm": ours["mlm"]} if "mlm" in ours else {}
        if soft_target_weight:
            layer = SoftTargetLosses(temperature, dtype="float32", name="soft")
            outputs["soft"] = layer(outputs["mlm"], targets["mlm"])
        if hidden_state_weight:
            layer = HiddenStateLosses(dtype="float32", name="hidden")
            outputs["hidden"] = layer(ours["sequence"], targets["sequence"])
        step = map_layers(backbone, known)
        if attention_score_weight:
            layer = AttentionScoreLosses(dtype="float32", name="attention")
            outputs["attention"] = layer(ours["attention_scores"], targets["attention_scores"][step - 1 :: step])
        if layer_state_weight:
            layer = LayerStateLosses(
                known.hidden_dim, backbone.initializer_range, backbone.dtype_policy, dtype="float32", name="layers"
            )
            outputs["layers"] = layer(ours["hidden_states"], targets["hidden_states"][::step])
        mask = student.input["padding_mask"]
        if feature_map_weight:
            layer = FeatureMapLosses(dtype="float32", name="feature_map")
            outputs["feature_map"] = layer(ours["hidden_states"][1:], targets["hidden_states"][1:], mask)
        if attention_map_weight:
            layer = AttentionMapLosses(dtype="float32", name="attention_map")
            outputs["attention_map"] = layer(ours["attention_scores"], targets["attention_scores"], mask)
        super().__init__(backbone, student.input, outputs, name)
        self.student, self.teacher = student, teacher
        self.default_loss_weights = {output: weights[output] for output in outputs}
        self.settings = {
            "temperature": temperature,
            "soft_target_weight": soft_target_weight,
            "masked_lm_weight": masked_lm_weight,
            "hidden_state_weight": hidden_state_weight,
            "attention_score_weight": attention_score_weight,
            "layer_state_weight": layer_state_weight,
            "feature_map_weight": feature_map_weight,
            "attention_map_weight": attention_map_weight,
        }

    def find_published(self) -> PresetModel:
        return self.student

    def list_fixed_weights(self) -> list[keras.Variable]:
        return self.teacher.variables

    def make_losses_and_metrics(self) -> tuple[Any, Any]:
        metrics = {"mlm": [token_accuracy()]} if "mlm" in self.output else None
        return {output: token_loss() for output in self.output}, metrics

    def get_config(self) -> dict[str, Any]:
        models = {"student": self.student, "teacher": self.teacher}
        saved = {name: keras.saving.serialize_keras_object(model) for name, model in models.items()}
        return saved | self.settings | {"name": self.name}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        models = {name: keras.saving.deserialize_keras_object(config[name]) for name in ("student", "teacher")}
        return cls(**config | models)


def _encode(model: PresetModel, inputs: Mapping[str, Tensor], name: str, **options: Any) -> dict[str, Any]:
    """Return `mlm` and `sequence` of a `MaskedLM`, as `encode_scored` does."""
    sequence = model.get_layer("mlm_transform").input[0]
    if inputs is model.input:
        return model.output | {"sequence": sequence}
    known = keras.Model(model.input, model.output | {"sequence": sequence}, name=name)
    outputs: dict[str, Any] = known(inputs, **options)
    return outputs
