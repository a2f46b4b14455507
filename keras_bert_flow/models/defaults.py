"""Default losses, metrics and optimizer of `compile()`: fused AdamW with weights excluded from decay."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

from keras_bert_flow.backends.fused import best_classes, cross_entropies, fuse, is_computable
from keras_bert_flow.backends.optimizers import (
    UNFUSED,
    apply_at_once,
    dense_gradients,
    step_at_once,
    step_by_torch,
)
from keras_bert_flow.backends.runtime import is_torch_on_processor
from keras_bert_flow.backends.values import Tensor, as_tensor, list_values

# Weight decay exclusions that survive saving, which Keras leaves out of a saved optimizer.

# Weights without decay, by `variable.name`: a path such as `layer_norm` matches nothing in Keras 3. On TensorFlow the
# optimizer sees names like `pooler/dense/bias:0`. A test checks the paths of the weights that are decayed.
UNDECAYED_NAMES = (r"(^|/)(bias|gamma|beta)(:0)?$",)


class ExcludesNames:
    """Mixin for optimizers that do not decay `UNDECAYED_NAMES`, also when built from a config."""

    exclude_from_weight_decay: Callable[..., None]  # of the optimizer class with this mixin

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.exclude_from_weight_decay(var_names=list(UNDECAYED_NAMES))


def list_undecayed(optimizer: Any, variables: Sequence[keras.Variable]) -> list[str]:
    """Return the paths of variables excluded from weight decay, except those that `ExcludesNames` excludes."""
    if optimizer is None:
        return []
    inner = _innermost(optimizer)
    own = UNDECAYED_NAMES if isinstance(inner, ExcludesNames) else ()
    return [
        variable.path
        for variable in variables
        # Keras has no public API for this.
        if not inner._use_weight_decay(variable) and not any(re.search(name, variable.name) for name in own)
    ]


@dataclass
@keras.saving.register_keras_serializable(package="keras_bert_flow")
class OptimizerWithExclusions:
    """Serialised form of an optimizer with its weight decay exclusions; `from_config` returns the optimizer itself.

    Args:
        optimizer: the optimizer as serialised by Keras.
        undecayed: paths of the variables without decay.
    """

    optimizer: Mapping[str, Any]
    undecayed: Sequence[str]

    def get_config(self) -> dict[str, Any]:
        return vars(self)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> keras.optimizers.Optimizer:
        optimizer = keras.saving.deserialize_keras_object(config["optimizer"])
        build, paths = optimizer.build, set(config["undecayed"])

        def exclude_and_build(variables: Sequence[keras.Variable]) -> None:
            if excluded := [variable for variable in variables if variable.path in paths]:
                _innermost(optimizer).exclude_from_weight_decay(var_list=excluded)
            build(variables)

        optimizer.build = exclude_and_build  # the variables are known only in `build`
        return optimizer


def _innermost(optimizer: Any) -> Any:
    while hasattr(optimizer, "inner_optimizer"):
        optimizer = optimizer.inner_optimizer
    return optimizer


# Keras' AdamW with fused steps: one pass over the weights, where the backend's version needs several.

# On PyTorch, `AdamW()` returns an instance of another class, which updates many weights per call; Keras does not do so
# for subclasses. It is not initialised: that would allocate memory before the process has chosen its device.
_KerasAdamW: Any = type(keras.optimizers.AdamW.__new__(keras.optimizers.AdamW))


class _AdamW(ExcludesNames, _KerasAdamW):
    """Base class of the AdamW variants below."""

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """Return the fastest AdamW for this backend and device, since they may differ from those of the saved model."""
        chosen = choose_adamw(is_plain=not any(map(config.get, UNFUSED)))
        return super().from_config(config) if chosen is cls else chosen.from_config(config)


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class DenseAdamW(_AdamW):
    """AdamW for TensorFlow: fused, and correct for gathered embeddings; see `dense_gradients`."""

    def apply(self, grads: Sequence[Tensor], trainable_variables: Sequence[keras.Variable] | None = None) -> None:
        return super().apply(dense_gradients(grads), trainable_variables)

    def update_step(self, gradient: Tensor, variable: keras.Variable, learning_rate: Tensor) -> None:
        index = self._get_variable_index(variable)  # Keras leaves this private method to subclasses
        places = self._momentums[index], self._velocities[index], variable
        step = ops.cast(self.iterations + 1, "float32")
        missing_1, missing_2 = (1 - ops.power(beta, step) for beta in (self.beta_1, self.beta_2))
        rate = ops.cast(learning_rate, "float32") * ops.sqrt(missing_2) / missing_1
        values = [as_tensor(place) for place in places]
        constants = self.beta_1, self.beta_2, self.epsilon
        for place, value in zip(places, step_at_once(gradient, *values, rate, *constants), strict=True):
            self.assign(place, value)


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class FusedAdamW(_AdamW):
    """AdamW for PyTorch on a CPU, with PyTorch's fused kernel.

    Keras makes about twelve passes over all weights, some into new memory. This one reads and writes everything once,
    and applies gradient clipping in the same pass. Accumulated gradients are summed in place. It supports none of
    `UNFUSED`.
    """

    def apply(self, grads: Sequence[Tensor], trainable_variables: Sequence[keras.Variable] | None = None) -> None:
        if is_torch_on_processor():
            apply_at_once(self, grads, trainable_variables, self._step)
        else:
            super().apply(grads, trainable_variables)

    def _step(self, given: list[tuple[Tensor, keras.Variable, int]], scale: Tensor | None, rate: float) -> None:
        decayed: list[Any] = []
        others: list[Any] = []
        for entry in given:
            (decayed if self._use_weight_decay(entry[1]) else others).append(entry)
        for chosen, decay in ((decayed, self.weight_decay or 0.0), (others, 0.0)):
            step_by_torch(
                list_values([variable for _, variable, _ in chosen]),
                [gradient for gradient, _, _ in chosen],
                list_values([self._momentums[index] for _, _, index in chosen]),
                list_values([self._velocities[index] for _, _, index in chosen]),
                int(self.iterations),
                rate,
                (self.beta_1, self.beta_2, self.epsilon),
                decay,
                scale,
            )


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class ExcludingAdamW(_AdamW):
    """AdamW for JAX, and for PyTorch on an accelerator."""

    def _apply_weight_decay(self, variables: Sequence[keras.Variable]) -> None:
        # If only biases are trained, there is nothing to decay, and PyTorch does not accept an empty list.
        if any(map(self._use_weight_decay, variables)):
            super()._apply_weight_decay(variables)


def choose_adamw(is_plain: bool) -> type[_AdamW]:
    """Return the fastest AdamW class for the current backend and device.

    Args:
        is_plain: whether no argument in `UNFUSED` is used.
    """
    if keras.backend.backend() == "tensorflow":
        return DenseAdamW
    return FusedAdamW if is_plain and is_torch_on_processor() else ExcludingAdamW


EPSILON = 1e-6  # google-research/bert, optimization.py


@fuse
def _cross_entropies(labels: Tensor, logits: Tensor) -> Tensor:
    """Return the cross-entropy of each row, (rows,), without computing the log-softmax of the other classes."""
    picked = ops.take_along_axis(logits, ops.expand_dims(labels, -1), axis=-1)[:, 0]
    return ops.logsumexp(logits, axis=-1) - picked


def are_distributions(labels: Tensor, logits: Tensor) -> bool:
    """Return whether labels are probabilities of classes, one-hot ones included, and not ids.

    Where batches of several widths leave the number of classes of the labels open, as on TensorFlow, ids are integers.
    """
    if not len(labels.shape) == len(logits.shape) > 1 or logits.shape[-1] in (1, None):
        return False
    is_open = labels.shape[-1] is None and "float" in keras.backend.standardize_dtype(labels.dtype)
    return is_open or labels.shape[-1] == logits.shape[-1]


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class TokenLoss(keras.losses.SparseCategoricalCrossentropy):
    """Sparse categorical cross-entropy of logits, computed by rows; labels that share logits each have a loss.

    One-hot labels, or other probabilities of the classes, are taken as they are. A label that is no class has the loss
    NaN, on every backend, unless its weight is 0.

    Outputs with one number per position, (batch, positions, 1), are taken as losses that the model has computed itself.

    Keras passes three-dimensional logits to PyTorch with the vocabulary as the middle axis, which takes twice as long,
    and on JAX multiplies logits by one-hot labels. For PyTorch on a CPU see `backends.fused`.
    """

    def __init__(self, from_logits: bool = True, **kwargs: Any) -> None:
        super().__init__(from_logits=from_logits, **kwargs)

    def __call__(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None) -> Tensor:
        return super().__call__(_leave_out(y_true, sample_weight), y_pred, sample_weight)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        if len(y_pred.shape) == 3 and y_pred.shape[-1] == 1:
            return y_pred[..., 0]
        if are_distributions(y_true, y_pred):
            return -ops.sum(ops.cast(y_true, y_pred.dtype) * ops.log_softmax(y_pred, axis=-1), axis=-1)
        is_class = find_classes(y_true, ops.shape(y_pred)[-1])
        losses = self._find_entropies(ops.where(is_class, y_true, ops.zeros_like(y_true)), y_pred)
        is_class = ops.reshape(is_class, ops.shape(losses))
        return ops.where(is_class, losses, ops.cast(float("nan"), losses.dtype))

    def _find_entropies(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        is_shared = len(y_pred.shape) == 3 and y_pred.shape[1] == 1
        if is_shared and len(y_true.shape) == 2 and y_true.shape[1] != 1:  # (batch, labels) and (batch, 1, classes)
            logits = ops.convert_to_tensor(y_pred)[:, 0]  # (batch, classes)
            picked = ops.take_along_axis(logits, ops.cast(y_true, "int32"), axis=-1)
            return ops.logsumexp(logits, axis=-1, keepdims=True) - picked
        logits = ops.reshape(y_pred, (-1, ops.shape(y_pred)[-1]))  # for spans, the classes are the tokens
        labels = ops.cast(ops.reshape(y_true, (-1,)), "int32")
        if is_computable(logits):
            losses = cross_entropies(logits, labels)
        elif keras.backend.backend() == "torch":
            losses = ops.sparse_categorical_crossentropy(labels, logits, from_logits=True)
        else:
            losses = _cross_entropies(labels, logits)
        return ops.reshape(losses, ops.shape(y_pred)[:-1])


def find_classes(labels: Tensor, count: Tensor | int) -> Tensor:
    """Return which integer labels are classes, from 0 to `count` - 1, bool."""
    labels = ops.convert_to_tensor(labels)
    return ops.logical_and(labels >= 0, labels < ops.cast(count, labels.dtype))


def _leave_out(labels: Tensor, weights: Tensor | None) -> Tensor:
    """Return labels with 0 in place of those without a weight, which may be of no class."""
    if weights is None:
        return labels
    labels, weights = ops.convert_to_tensor(labels), ops.convert_to_tensor(weights)
    if len(weights.shape) > len(labels.shape):
        weights = ops.reshape(weights, ops.shape(labels))
    while len(weights.shape) < len(labels.shape):
        weights = ops.expand_dims(weights, -1)
    return ops.where(ops.equal(weights, 0), ops.zeros_like(labels), labels)


def token_loss(is_sum: bool = False) -> TokenLoss:
    """Return the cross-entropy loss of integer labels, averaged over sample weights.

    The sum is divided by that of the weights, not by the number of positions, to keep filler out of the mean.

    Args:
        is_sum: use sum reduction, for weights that are already divided (`data.pretraining`).
    """
    return TokenLoss(reduction="sum" if is_sum else "mean_with_sample_weight")


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class TokenAccuracy(keras.metrics.SparseCategoricalAccuracy):
    """Sparse categorical accuracy, faster than Keras' on JAX and on PyTorch on a CPU.

    On JAX it compares logits with that of the label, which XLA fuses into one pass, unlike an `argmax`. For PyTorch on
    a CPU it uses NumPy's `argmax`.
    """

    def update_state(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None) -> None:
        y_true, y_pred = ops.convert_to_tensor(y_true), ops.convert_to_tensor(y_pred)
        if are_distributions(y_true, y_pred):
            y_true = ops.argmax(y_true, axis=-1)
        if is_computable(y_pred):
            is_right = ops.equal(best_classes(y_pred), ops.reshape(y_true, ops.shape(y_pred)[:-1]))
            return keras.metrics.Mean.update_state(self, ops.cast(is_right, self.dtype), sample_weight)
        if keras.backend.backend() != "jax":
            return super().update_state(y_true, y_pred, sample_weight)
        labels = ops.reshape(ops.cast(y_true, "int32"), (*ops.shape(y_pred)[:-1], 1))
        picked = ops.take_along_axis(y_pred, labels, axis=-1)
        numbers = ops.arange(y_pred.shape[-1], dtype="int32")
        is_before = ops.logical_or(y_pred > picked, ops.logical_and(y_pred == picked, numbers < labels))
        is_first = ops.logical_not(ops.any(is_before, axis=-1))
        is_first = ops.logical_and(is_first, find_classes(labels, y_pred.shape[-1])[..., 0])
        return keras.metrics.Mean.update_state(self, ops.cast(is_first, self.dtype), sample_weight)


def token_accuracy() -> TokenAccuracy:
    """Return the accuracy metric of integer labels: the share that equals the argmax, the first of ties."""
    return TokenAccuracy(name="accuracy")


def make_adamw(
    learning_rate: float | keras.optimizers.schedules.LearningRateSchedule,
    weight_decay: float = 0.01,
    clip_norm: float | None = 1.0,
    epsilon: float = EPSILON,
    **options: Any,
) -> _AdamW:
    """Return AdamW without weight decay on biases and layer norms.

    Args:
        learning_rate: a number or a schedule.
        weight_decay: decoupled decay.
        clip_norm: maximum global norm of the gradient.
        epsilon: added to the root of the second moment, before bias correction.
        options: further arguments of `keras.optimizers.AdamW`.
    Source: Devlin et al. 2019, appendix A.2. Unlike the original, it has the bias correction of Adam's authors.
    """
    return choose_adamw(is_plain=options.keys() <= {"gradient_accumulation_steps"})(
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        epsilon=epsilon,
        global_clipnorm=clip_norm,
        name="adamw",  # default names count the optimizers of the process, so a checkpoint would not fit in another
        **options,
    )
