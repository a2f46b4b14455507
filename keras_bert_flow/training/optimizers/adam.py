"""AdamW, BertAdam, LAMB, StableAdamW and Muon: by name, with learning rates by layer, and as classes of two moments."""

import math
import re
from typing import Any

import keras
from keras import ops

from keras_bert_flow.backends.optimizers import (
    apply_at_once,
    dense_gradients,
    orthogonalise_together,
    step_by_torch,
    step_matrices,
)
from keras_bert_flow.backends.products import product_dtype
from keras_bert_flow.backends.runtime import is_torch_on_processor
from keras_bert_flow.models.defaults import EPSILON, UNDECAYED_NAMES, make_adamw
from keras_bert_flow.training.optimizers.guard import DEFAULT_ADVICE, GuardedOptimizer
from keras_bert_flow.training.optimizers.schedules import LINEAR, AccumulatedSteps, PacedSteps, WarmupDecay

ADAMW, BERT_ADAM, LAMB, MUON, STABLE_ADAMW = OPTIMIZERS = "adamw", "bert_adam", "lamb", "muon", "stable_adamw"


def adamw(learning_rate, total_steps, warmup_steps=0, weight_decay=0.01, clip_norm=1.0, decay=LINEAR, epsilon=EPSILON):
    """Return AdamW with learning rate warm-up, and without weight decay on biases and layer norms.

    Args:
        learning_rate: peak learning rate.
        total_steps: step at which the rate reaches 0.
        warmup_steps: number of warm-up steps.
        weight_decay: decoupled decay.
        clip_norm: maximum global norm of the gradient.
        decay: learning rate decay: `linear`, `cosine` or `constant`.
        epsilon: see `make_optimizer`.
    Source: Devlin et al. 2019, appendix A.2.
    Example:
        >>> optimizer = kbf.adamw(learning_rate=1e-4, total_steps=1000, warmup_steps=100)
        >>> classifier = kbf.TextClassifier.from_preset("model", labels=["negative", "positive"])
        >>> classifier.compile(optimizer)
    """
    schedule = WarmupDecay(learning_rate, warmup_steps, total_steps, decay)
    return make_optimizer(ADAMW, schedule, weight_decay, clip_norm, epsilon=epsilon)


def make_optimizer(
    kind,
    learning_rate,
    weight_decay=0.01,
    clip_norm=1.0,
    rate_factors=None,
    accumulate_batches=1,
    epsilon=EPSILON,
    muon_options=None,
):
    """Return an optimizer by name, without weight decay on biases and layer norms.

    Args:
        kind: `adamw`, `bert_adam`, `lamb`, `muon` or `stable_adamw`.
        learning_rate: a float, or a schedule of steps.
        weight_decay: decoupled decay.
        clip_norm: maximum global norm of the gradient.
        rate_factors: weight path → factor of its learning rate; see `find_rate_factors`.
        accumulate_batches: number of batches whose mean gradient makes a step.
        epsilon: added to the root of the second moment, the divisor of a step.
        muon_options: further arguments of `Muon`, including `matrices`; ignored for other kinds.
    Raises:
        ValueError: `kind` is unknown.
    """
    accumulation = {}
    if accumulate_batches > 1:
        accumulation["gradient_accumulation_steps"] = accumulate_batches
        if not isinstance(learning_rate, float):
            learning_rate = AccumulatedSteps(learning_rate, accumulate_batches)
    if kind == ADAMW and not rate_factors:
        return make_adamw(learning_rate, weight_decay, clip_norm, epsilon, **accumulation)
    options = {"weight_decay": weight_decay, "global_clipnorm": clip_norm, "epsilon": epsilon} | accumulation
    options["rate_factors"] = rate_factors
    if kind == ADAMW:
        return BertAdam(learning_rate, bias_correction=True, name=ADAMW, **options)
    if kind == BERT_ADAM:
        return BertAdam(learning_rate, **options)
    if kind == LAMB:
        return Lamb(learning_rate, **options)
    if kind == STABLE_ADAMW:
        return StableAdamW(learning_rate, **options)
    if kind == MUON:
        return Muon(learning_rate, **(options | (muon_options or {})))
    raise ValueError(f"The optimizer must be one of {', '.join(OPTIMIZERS)}. Received: {kind!r}. Use one of these.")


def make_guarded_optimizer(
    kind,
    learning_rate,
    weight_decay=0.01,
    clip_norm=1.0,
    rate_factors=None,
    accumulate_batches=1,
    epsilon=EPSILON,
    muon_options=None,
    max_skipped_steps=0,
    precision="float32",
    advice=DEFAULT_ADVICE,
    turns=None,
):
    """Return a `GuardedOptimizer`, for `compile(..., auto_scale_loss=False)`.

    Args:
        kind, learning_rate, weight_decay, clip_norm, rate_factors, accumulate_batches, epsilon, muon_options: see
            `make_optimizer`.
        max_skipped_steps, advice, turns: see `GuardedOptimizer`.
        precision: with `mixed_float16` the loss is scaled.
    """
    scales_loss = precision == "mixed_float16"
    is_guard_accumulating = scales_loss or max_skipped_steps > 0
    inner_batches, outer_batches = (1, accumulate_batches) if is_guard_accumulating else (accumulate_batches, 1)
    inner = make_optimizer(
        kind, learning_rate, weight_decay, clip_norm, rate_factors, inner_batches, epsilon, muon_options
    )
    paced = learning_rate if isinstance(learning_rate, PacedSteps) else None
    return GuardedOptimizer(inner, max_skipped_steps, outer_batches, scales_loss, paced, advice=advice, turns=turns)


# Layer-wise learning rate decay: a factor for each weight by its depth.


def find_rate_factors(backbone, layer_decay: float = 1.0, token_embedding_factor: float = 1.0) -> dict[str, float]:
    """Return path → learning rate factor for the weights of an encoder: `layer_decay` to the power of the layers above.

    The top block has `layer_decay`, the one below it its square, and the embeddings, below all blocks, the smallest
    factor. Weights that are not in the result, those of heads and the pooler, have factor 1.

    Args:
        backbone: a `Backbone`, which knows the depth of its weights.
        layer_decay: 1.0 gives all weights the same rate.
        token_embedding_factor: an additional factor of the token embeddings.
    Returns:
        The factors; empty if all are 1.
    Raises:
        ValueError: `layer_decay` is not in (0, 1].
    Source: Clark et al. 2020 (ELECTRA), section 3.1 and appendix A, arXiv:2003.10555. Their code gives the top block
    the square; here it is one layer below the head.
    """
    if not 0 < layer_decay <= 1:
        raise ValueError(f"`layer_decay` must be above 0 and at most 1. Received: layer_decay={layer_decay}. Try 0.9.")
    if layer_decay == token_embedding_factor == 1:
        return {}
    depths = backbone.find_depths()
    head_depth = max(depths.values()) + 1
    factors = {path: layer_decay ** (head_depth - depth) for path, depth in depths.items()}
    for weight in backbone.token_embedding.weights:
        factors[weight.path] *= token_embedding_factor
    return factors


# Base class of optimizers with two moments, weight decay exclusions and learning rate factors by weight.


class MomentOptimizer(keras.optimizers.Optimizer):
    """Base class of optimizers whose subclasses compute the update direction from two moments of the gradient.

    Keras applies weight decay outside of the update and does not save its exclusions, so decay is part of the direction
    here. Exclusions and rates are looked up by `variable.path` when the optimizer is built: on TensorFlow the variables
    of a step have other names.

    Args:
        learning_rate: a number or a schedule.
        weight_decay: decoupled decay.
        beta_1: decay rate of the first moment.
        beta_2: decay rate of the second moment.
        epsilon: added to the divisor, to keep the step finite.
        excluded_names: patterns of the paths without decay.
        rate_factors: weight path → factor of its learning rate. Default: 1. See `find_rate_factors`.
        kwargs: of `keras.optimizers.Optimizer`, such as `global_clipnorm`.
    """

    def __init__(
        self,
        learning_rate,
        weight_decay=0.01,
        beta_1=0.9,
        beta_2=0.999,
        epsilon=EPSILON,
        excluded_names=UNDECAYED_NAMES,
        rate_factors=None,
        **kwargs,
    ):
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.decay = weight_decay  # `weight_decay` of the base class would be applied a second time
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        self.excluded_names = tuple(excluded_names)
        self.rate_factors = dict(rate_factors or {})

    def build(self, variables):
        if self.built:
            return
        paths = [variable.path for variable in variables]
        self._rate_factors = tuple(self.rate_factors.get(path, 1.0) for path in paths)
        self._is_excluded = tuple(any(re.search(name, path) for name in self.excluded_names) for path in paths)
        super().build(variables)
        self._momentums, self._velocities = self.add_optimizer_variables(variables, ["momentum", "velocity"])

    def apply(self, grads, trainable_variables=None):
        return super().apply(dense_gradients(grads), trainable_variables)

    def update_step(self, gradient, variable, learning_rate):
        index = self._get_variable_index(variable)  # Keras leaves this private method to subclasses
        momentum, velocity = self._momentums[index], self._velocities[index]
        gradient = ops.cast(gradient, variable.dtype)
        self.assign_add(momentum, ops.multiply(ops.subtract(gradient, momentum), 1 - self.beta_1))
        self.assign_add(velocity, ops.multiply(ops.subtract(ops.square(gradient), velocity), 1 - self.beta_2))
        rate = ops.cast(learning_rate, variable.dtype) * self._rate_factors[index]
        direction = self.find_direction(variable, gradient, momentum, velocity, self._is_excluded[index])
        self.assign_sub(variable, ops.multiply(direction, rate))

    def find_direction(self, variable, gradient, momentum, velocity, is_excluded):
        """Return the update direction of a variable, to subtract times the rate; the moments include this step."""
        raise NotImplementedError

    def find_missing(self, beta, dtype):
        """Return the bias correction 1 - beta^t at step t, to full precision."""
        return -ops.expm1(ops.cast(self.iterations + 1, dtype) * math.log(beta))

    def get_config(self):
        names = ("beta_1", "beta_2", "epsilon", "rate_factors")
        own = {name: getattr(self, name) for name in names}
        return super().get_config() | own | {"weight_decay": self.decay, "excluded_names": list(self.excluded_names)}


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class BertAdam(MomentOptimizer):
    """Adam with decoupled weight decay, by default without bias correction.

    Without correction the first steps are larger: the second moment is too small by a factor of 1 - 0.999^t, the first
    only by 1 - 0.9^t.

    Args:
        bias_correction: correct the bias, which makes this AdamW, with layer-wise rates, which Keras' AdamW lacks.
        kwargs: see `MomentOptimizer`.
    Source: google-research/bert, optimization.py, `AdamWeightDecayOptimizer`; the bias correction is that of Kingma
    and Ba 2015, end of section 2, as in Keras.
    """

    def __init__(self, learning_rate, bias_correction=False, name="bert_adam", **kwargs):
        super().__init__(learning_rate, name=name, **kwargs)
        self.bias_correction = bias_correction

    def apply(self, grads, trainable_variables=None):
        # PyTorch takes the whole step with bias correction, but without accumulation, EMA or clipping by weight.
        kept_apart = (self.gradient_accumulation_steps, self.use_ema, self.clipnorm, self.clipvalue)
        if self.bias_correction and is_torch_on_processor() and not any(kept_apart):
            apply_at_once(self, grads, trainable_variables, self.step_all)
        else:
            super().apply(grads, trainable_variables)

    def update_step(self, gradient, variable, learning_rate):
        index = self._get_variable_index(variable)  # Keras leaves this private method to subclasses
        if self.bias_correction and is_torch_on_processor():
            self.step_all([(gradient.contiguous(), variable, index)], None, float(learning_rate))
        else:
            super().update_step(gradient, variable, learning_rate)

    def step_all(self, given, scale, learning_rate):
        """Apply the gradients from `apply_at_once`, with one call for all weights of the same rate and decay."""
        groups: dict[tuple[Any, Any], list[tuple]] = {}
        for gradient, variable, index in given:
            kind = self._rate_factors[index], 0.0 if self._is_excluded[index] else self.decay
            moments = self._momentums[index].value, self._velocities[index].value
            groups.setdefault(kind, []).append((variable.value, gradient, *moments))
        for (factor, decay), tensors in groups.items():
            weights, gradients, momentums, velocities = map(list, zip(*tensors, strict=True))
            step_by_torch(
                weights,
                gradients,
                momentums,
                velocities,
                int(self.iterations),
                learning_rate * factor,
                (self.beta_1, self.beta_2, self.epsilon),
                decay,
                scale,
            )

    def find_direction(self, variable, gradient, momentum, velocity, is_excluded):
        direction = ops.divide(momentum, ops.add(ops.sqrt(velocity), self.epsilon))
        if self.bias_correction:
            missing = [self.find_missing(beta, variable.dtype) for beta in (self.beta_1, self.beta_2)]
            direction = ops.multiply(direction, ops.sqrt(missing[1]) / missing[0])
        return direction if is_excluded else ops.add(direction, ops.multiply(variable, self.decay))

    def get_config(self):
        return super().get_config() | {"bias_correction": self.bias_correction}


# LAMB as published: layer-wise adaptive rates for large batches.


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class Lamb(MomentOptimizer):
    """LAMB: a weight moves by the rate times its norm, along the bias-corrected Adam direction plus decay.

    Layer norms and biases have no decay and no trust ratio, as in the authors' code. The trust ratio is 1 if the norm
    of the weight or its direction is 0. `keras.optimizers.Lamb` applies decay outside the ratio and excludes nothing.

    Args:
        kwargs: see `MomentOptimizer`.
    Source: You et al. 2020, algorithm 2, with the identity as phi; arXiv:1904.00962.
    """

    def __init__(self, learning_rate, name="lamb", **kwargs):
        super().__init__(learning_rate, name=name, **kwargs)

    def find_direction(self, variable, gradient, momentum, velocity, is_excluded):
        mean = ops.divide(momentum, self.find_missing(self.beta_1, variable.dtype))
        mean_square = ops.divide(velocity, self.find_missing(self.beta_2, variable.dtype))
        direction = ops.divide(mean, ops.add(ops.sqrt(mean_square), self.epsilon))
        if is_excluded:
            return direction
        direction = ops.add(direction, ops.multiply(variable, self.decay))
        weight_norm, direction_norm = (ops.sqrt(ops.sum(ops.square(values))) for values in (variable, direction))
        is_usable = ops.logical_and(weight_norm > 0, direction_norm > 0)
        trust_ratio = ops.where(is_usable, weight_norm / ops.where(is_usable, direction_norm, 1.0), 1.0)
        return ops.multiply(direction, trust_ratio)


# StableAdamW: AdamW with the update clipping of Adafactor in place of a smaller learning rate.


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class StableAdamW(MomentOptimizer):
    """AdamW whose step of a weight is divided by how far its gradient is above what the second moment expects.

    The divisor is the root mean square over the weight of gradient / root of the corrected second moment, where it is
    above 1; the decay is divided by it as well.

    Args:
        beta_2: decay rate of the second moment. Default: that of ModernBERT.
        kwargs: see `MomentOptimizer`.
    Source: Wortsman et al. 2023, algorithm 2, arXiv:2304.13013. ModernBERT (Warner et al. 2024, arXiv:2412.13663,
        section 2.2.2) and Ettin use it.
    """

    def __init__(self, learning_rate, beta_2=0.98, name="stable_adamw", **kwargs):
        super().__init__(learning_rate, beta_2=beta_2, name=name, **kwargs)

    def find_direction(self, variable, gradient, momentum, velocity, is_excluded):
        mean = ops.divide(momentum, self.find_missing(self.beta_1, variable.dtype))
        mean_square = ops.divide(velocity, self.find_missing(self.beta_2, variable.dtype))
        direction = ops.divide(mean, ops.add(ops.sqrt(mean_square), self.epsilon))
        direction = direction if is_excluded else ops.add(direction, ops.multiply(variable, self.decay))
        excess = ops.mean(ops.square(gradient) / ops.maximum(mean_square, self.epsilon**2))
        return ops.divide(direction, ops.maximum(ops.sqrt(excess), 1.0))


# Muon for the matrices of the encoder, with AdamW for all other weights.

# Quintic Newton-Schulz iteration, which brings singular values from near 0 to between 0.7 and 1.2 in five steps.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class Muon(BertAdam):
    """Muon for the matrices of the encoder blocks; AdamW for embeddings, heads, biases and layer norms.

    A matrix moves along its Nesterov momentum, orthogonalised so that all singular values are near 1, times
    sqrt(outputs / inputs) if that is above 1. Query, key and value are treated as three matrices, though they are one
    variable. `keras.optimizers.Muon` treats them as one, and has no factor between the two learning rates.

    Args:
        matrices: path → number of heads for a fused query-key-value matrix, whose columns are ordered (heads, 3,
            head_dim), or 0 for any other matrix. `Backbone.list_matrices` returns those of an encoder.
        matrix_rate_factor: the learning rate of the matrices, divided by that of all other weights.
        momentum: decay rate of the momentum of matrices.
        product_type: `bfloat16` orthogonalises in bfloat16, if the CPU is fast in it; see `product_dtype`.
        kwargs: see `MomentOptimizer`.
    Source: Jordan et al. 2024, https://kellerjordan.github.io/posts/muon.
    """

    def __init__(
        self,
        learning_rate,
        matrices,
        matrix_rate_factor=20.0,
        momentum=0.95,
        product_type="float32",
        name="muon",
        **kwargs,
    ):
        kwargs["bias_correction"] = True
        super().__init__(learning_rate, name=name, **kwargs)
        self.matrices = dict(matrices)
        self.matrix_rate_factor = matrix_rate_factor
        self.momentum = momentum
        self.product_type = product_type

    def build(self, variables):
        if not self.built:
            self._is_matrix = tuple(variable.path in self.matrices for variable in variables)
            self._heads = tuple(self.matrices.get(variable.path, 0) for variable in variables)
        super().build(variables)

    def step_all(self, given, scale, learning_rate):
        matrices = [entry for entry in given if self._is_matrix[entry[2]]]
        super().step_all([entry for entry in given if not self._is_matrix[entry[2]]], scale, learning_rate)
        if not matrices:
            return
        heads = [self._heads[index] for _, _, index in matrices]

        def find_directions(ahead):
            parted = [part(matrix, count) if count else matrix for matrix, count in zip(ahead, heads, strict=True)]
            found = orthogonalise_together(parted, self.product_type, COEFFICIENTS, ITERATIONS)
            return [join(parts, count) if count else parts for parts, count in zip(found, heads, strict=True)]

        step_matrices(
            [variable.value for _, variable, _ in matrices],
            [gradient for gradient, _, _ in matrices],
            [self._momentums[index].value for _, _, index in matrices],
            find_directions,
            self.momentum,
            [learning_rate * self.matrix_rate_factor * self._rate_factors[index] for _, _, index in matrices],
            self.decay,
            scale,
        )

    def update_step(self, gradient, variable, learning_rate):
        index = self._get_variable_index(variable)  # Keras leaves this private method to subclasses
        if not self._is_matrix[index] or is_torch_on_processor():
            return super().update_step(gradient, variable, learning_rate)
        gradient = ops.cast(gradient, variable.dtype)
        momentum = ops.add(ops.multiply(self._momentums[index], self.momentum), gradient)
        self.assign(self._momentums[index], momentum)
        ahead = ops.add(gradient, ops.multiply(momentum, self.momentum))
        heads = self._heads[index]
        found = orthogonalise(part(ahead, heads) if heads else ahead, self.product_type)
        direction = ops.add(join(found, heads) if heads else found, ops.multiply(variable, self.decay))
        rate = ops.cast(learning_rate, variable.dtype) * (self.matrix_rate_factor * self._rate_factors[index])
        self.assign_sub(variable, ops.multiply(direction, rate))

    def get_config(self):
        names = ("matrices", "matrix_rate_factor", "momentum", "product_type")
        config = super().get_config() | {name: getattr(self, name) for name in names}
        del config["bias_correction"]
        return config


def part(kernel, heads):
    """Split a fused query-key-value kernel into (3, inputs, outputs / 3)."""
    inputs, outputs = kernel.shape
    parts = ops.reshape(kernel, (inputs, heads, 3, outputs // (3 * heads)))
    return ops.reshape(ops.transpose(parts, (2, 0, 1, 3)), (3, inputs, outputs // 3))


def join(parts, heads):
    """Join query, key and value to a fused kernel; the inverse of `part`."""
    _, inputs, outputs = parts.shape
    parts = ops.reshape(parts, (3, inputs, heads, outputs // heads))
    return ops.reshape(ops.transpose(parts, (1, 2, 0, 3)), (inputs, 3 * outputs))


def orthogonalise(matrices, product_type="float32"):
    """Orthogonalise matrices: keep their singular vectors, bring singular values near 1, and scale them for a step.

    Args:
        matrices: float, (..., inputs, outputs).
        product_type: dtype of the matrix products.
    Returns:
        The dtype and shape of `matrices`, times sqrt(outputs / inputs) if that is above 1.
    """
    first, second, third = COEFFICIENTS
    inputs, outputs = matrices.shape[-2:]
    values = ops.swapaxes(matrices, -1, -2) if inputs > outputs else matrices  # the smaller products
    values = values / (ops.sqrt(ops.sum(ops.square(values), axis=(-2, -1), keepdims=True)) + 1e-7)
    values = ops.cast(values, product_dtype(product_type))
    for _ in range(ITERATIONS):
        gram = ops.matmul(values, ops.swapaxes(values, -1, -2))
        values = first * values + ops.matmul(second * gram + third * ops.matmul(gram, gram), values)
    values = ops.cast(values, matrices.dtype) * max(1.0, outputs / inputs) ** 0.5
    return ops.swapaxes(values, -1, -2) if inputs > outputs else values
