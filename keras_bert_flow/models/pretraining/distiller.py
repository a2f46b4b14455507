"""Knowledge distillation of a masked LM from a larger one."""

from typing import Any, Self

import keras
from keras import ops

from keras_bert_flow.backends.fused import divergences, is_computable
from keras_bert_flow.backends.values import Shape, Tensor
from keras_bert_flow.models.defaults import token_accuracy, token_loss
from keras_bert_flow.models.sizes import check_teacher
from keras_bert_flow.models.with_head import ModelWithHead

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
class Distiller(ModelWithHead):
    """Distil a student from a teacher: soft targets of masked tokens, the masked tokens, and hidden states.

    Inputs: those of a `MaskedLM`. Outputs: `mlm` of the student; `soft`, float32, (batch, masks_per_sequence, 1), and
    `hidden`, float32, (batch, length, 1), which are losses themselves. A weight of 0 removes the output, except `mlm`.
    The teacher is not trained, has no dropout, and is not saved in checkpoints.

    Args:
        student: a `MaskedLM`; the model that is published.
        teacher: a `MaskedLM` with the same vocabulary, and the same width if hidden states are compared.
        temperature: of the soft targets.
        soft_target_weight, masked_lm_weight, hidden_state_weight: of the three losses.
    Raises:
        ValueError: the vocabularies or the widths differ.
    Source: Sanh et al. 2019, section 3, arXiv:1910.01108. Here soft targets are computed for masked tokens only, since
        only these are projected to the vocabulary.
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
        student: ModelWithHead,
        teacher: ModelWithHead,
        temperature: float = 2.0,
        soft_target_weight: float = 5.0,
        masked_lm_weight: float = 2.0,
        hidden_state_weight: float = 1.0,
        name: str = "distiller",
    ) -> None:
        check_teacher(student.backbone, teacher.backbone, hidden_state_weight)
        teacher.trainable = False
        ours, theirs = (model.get_layer("mlm_transform").input[0] for model in (student, teacher))  # last hidden states
        known = keras.Model(teacher.input, teacher.output | {"sequence": theirs}, name="teacher")
        targets = known(student.input, training=False)
        outputs = {"mlm": student.output["mlm"]}
        weights = {"mlm": masked_lm_weight, "soft": soft_target_weight, "hidden": hidden_state_weight}
        if soft_target_weight:
            layer = SoftTargetLosses(temperature, dtype="float32", name="soft")
            outputs["soft"] = layer(outputs["mlm"], targets["mlm"])
        if hidden_state_weight:
            layer = HiddenStateLosses(dtype="float32", name="hidden")
            outputs["hidden"] = layer(ours, targets["sequence"])
        super().__init__(student.backbone, student.input, outputs, name)
        self.student, self.teacher = student, teacher
        self.default_loss_weights = {output: weights[output] for output in outputs}
        self.settings = {"temperature": temperature} | {
            "soft_target_weight": soft_target_weight,
            "masked_lm_weight": masked_lm_weight,
            "hidden_state_weight": hidden_state_weight,
        }

    def find_published(self) -> "ModelWithHead":
        return self.student

    def list_fixed_weights(self) -> list[keras.Variable]:
        return self.teacher.variables

    def make_losses_and_metrics(self) -> tuple[Any, Any]:
        return {output: token_loss() for output in self.output}, {"mlm": [token_accuracy()]}

    def get_config(self) -> dict[str, Any]:
        models = {"student": self.student, "teacher": self.teacher}
        saved = {name: keras.saving.serialize_keras_object(model) for name, model in models.items()}
        return saved | self.settings | {"name": self.name}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        models = {name: keras.saving.deserialize_keras_object(config[name]) for name in ("student", "teacher")}
        return cls(**config | models)
