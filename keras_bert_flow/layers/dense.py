"""Dense layers with cheaper gradients and LoRA, dropout, activations, the base class of layers, rematerialisation."""

import random
from collections.abc import Callable, Mapping
from typing import Any

import keras
from keras import ops

from keras_bert_flow.backends.fused import drop_values, dropped_steps, fuse, next_seed
from keras_bert_flow.backends.kernels import keep_inputs
from keras_bert_flow.backends.products import matmul, project
from keras_bert_flow.backends.values import Shape, Tensor, outside_scopes
from keras_bert_flow.layers.shape import EncoderShape, describe_shape, make_shape

# Activations by name, and the gate of a feed-forward.

HIDDEN_ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "silu")


def get_activation(hidden_act: str, is_for_training: bool = False) -> Callable[[Tensor], Tensor]:
    """Return an activation function by name.

    `gelu` is the erf form of the 2018 release. `gelu_tanh` is the approximation that google-research/bert adopted in
    February 2019 and used for its 24 small models of 2020.

    Args:
        is_for_training: return the function with a cheaper gradient, for inputs of few shapes; see `fused.fuse`.
    Raises:
        ValueError: the name is none of these.
    """
    if hidden_act not in HIDDEN_ACTIVATIONS:
        raise ValueError(
            f"`hidden_act` must be one of {', '.join(HIDDEN_ACTIVATIONS)}. Received: hidden_act={hidden_act!r}. "
            "Try 'gelu'."
        )
    function = {"gelu": _gelu_erf, "gelu_tanh": _gelu_tanh, "relu": keras.ops.relu, "silu": _silu}[hidden_act]
    return _TRAINING_FORMS[function] if is_for_training else function


def _gelu_erf(inputs: Tensor) -> Tensor:
    return keras.ops.gelu(inputs, approximate=False)


def _gelu_tanh(inputs: Tensor) -> Tensor:
    return keras.ops.gelu(inputs, approximate=True)


def _silu(inputs: Tensor) -> Tensor:
    return keras.ops.silu(inputs)


_TRAINING_FORMS: dict[Callable, Callable] = {
    function: fuse(keep_inputs(function)) for function in (_gelu_erf, _gelu_tanh, _silu)
} | {keras.ops.relu: keras.ops.relu}


def gate(fused: Tensor, groups: int, activation: Callable[[Tensor], Tensor]) -> Tensor:
    """Multiply the activation of one half of the values by the other half, as in GeGLU and SwiGLU.

    Args:
        fused: float, (..., 2 units). The last axis is ordered (groups, 2, units / groups): the values to activate, then
            their factors. With this order, sharding it evenly over a divisor of `groups` keeps both on one device.
    Returns:
        float, (..., units).
    Source: Shazeer 2020; arXiv:2002.05202.
    """
    leading = ops.shape(fused)[:-1]
    split = ops.reshape(fused, (*leading, groups, 2, fused.shape[-1] // (2 * groups)))
    first, second = ops.unstack(split, 2, axis=-2)
    return ops.reshape(activation(first) * second, (*leading, fused.shape[-1] // 2))


# Initializers of weight matrices.


def truncated_normal(initializer_range: float = 0.02) -> keras.initializers.Initializer:
    """Return a new normal initializer truncated at two standard deviations, as for all weights in google-research/bert.

    A Keras initializer draws the same values at each call, so no two variables may share one.

    Args:
        initializer_range: standard deviation before truncation; truncated, it is 0.88 of that.
    """
    return keras.initializers.TruncatedNormal(mean=0.0, stddev=initializer_range)


def normal(initializer_range: float = 0.02) -> keras.initializers.Initializer:
    """Return a new normal initializer with standard deviation `initializer_range`, as for all weights in transformers.

    For task heads: the smaller their initial weights, the later the encoder learns from them (benchmarks/head_size.py).
    """
    return keras.initializers.RandomNormal(mean=0.0, stddev=initializer_range)


def lora_uniform(shape: Shape, dtype: str | None = None) -> Tensor:
    """Initialise the first LoRA matrix, (inputs, rank): uniform within ±1 / sqrt(inputs), as in peft.

    Source: microsoft/LoRA, loralib/layers.py, `kaiming_uniform_(lora_A, a=sqrt(5))`.
    """
    return keras.initializers.VarianceScaling(1 / 3, "fan_in", "uniform")(shape, dtype)


# Dropout layer whose seed has a stable path in checkpoints.


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class Dropout(keras.layers.Layer):
    """Dropout: set a fraction of the values to 0 in training and scale up the others.

    It computes the same as `keras.layers.Dropout`. That layer names its seed `seed_generator_188` or so, by a counter
    of the process, so a model resumed in another process would not find its state under the old name. Here the path of
    the seed starts with that of the layer. The random numbers are cheaper too; see `drop_values`.

    Raises:
        ValueError: `rate` is not in [0, 1).
    """

    def __init__(self, rate: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not 0 <= rate < 1:
            raise ValueError(f"A dropout rate must be at least 0 and below 1. Received: rate={rate}. Try 0.1.")
        self.rate = rate

    def build(self, inputs_shape: Shape) -> None:
        if self.rate > 0:
            # Keras would draw the same seed by default, but without an explicit one PyTorch uses its own generator,
            # whose state is in no checkpoint.
            self.seed_generator = keras.random.SeedGenerator(random.randint(1, 10**9), name="seed_generator")

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        drawn = self.draw(training)
        return inputs if drawn is None else drop_values(inputs, *drawn)

    def draw(self, training: bool | None) -> tuple[Tensor, int] | None:
        """Return the further arguments of `drop_values`: a seed that no other call gets, and the rate in steps.

        None if nothing is dropped: not in training, or at a rate of 0.
        """
        return (next_seed(self.seed_generator), dropped_steps(self.rate)) if training and self.rate > 0 else None

    def compute_output_shape(self, inputs_shape: Shape) -> Shape:
        return inputs_shape

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"rate": self.rate}


# Layers that save LoRA in full: the frozen weight and the two matrices, where Keras saves only their sum.

STORED = "lora_"  # prefix of what a layer saves in addition to what Keras saves
_WEIGHTS = ("kernel", "embeddings")  # weights that may have LoRA


class SavesLora(keras.layers.Layer):
    """Base class, next to a Keras layer with `enable_lora`: training goes on exactly from a saved file.

    Keras' own entries stay the merged weights, which a layer without LoRA loads. In a quantised layer the sum is
    quantised anew, so the frozen weight is saved with its scale.
    """

    # Defined by the Keras layer
    lora_enabled: bool
    lora_rank: int
    lora_alpha: float
    variable_serialization_spec: Any

    def save_own_variables(self, store: Any) -> None:
        super().save_own_variables(store)
        if self.lora_enabled:
            for name, variable in self._list_lora_state().items():
                store[name] = variable

    def load_own_variables(self, store: Any) -> None:
        names = [name for name in store.keys() if name.startswith(STORED)]  # noqa: SIM118, a store is no mapping
        if not self.lora_enabled:
            super().load_own_variables({name: store[name] for name in store.keys() if name not in names})  # noqa: SIM118
            return
        state = self._list_lora_state()
        if {*state} != {*names} or any(tuple(store[name].shape) != tuple(state[name].shape) for name in names):
            raise ValueError(
                "A file must have the LoRA of the layer that it is loaded into. Received: none, or of other targets or "
                f"another rank, for {self.name}. Load it before LoRA is enabled, or enable LoRA as it was then."
            )
        for name, variable in state.items():
            variable.assign(store[name])

    def quantize(self, mode: str | None = None, type_check: bool = True, config: Any = None) -> None:
        """Quantise as Keras does, without its type check, which rejects subclasses."""
        super().quantize(mode, type_check=False, config=config)

    def list_lora_matrices(self) -> dict[str, Tensor]:
        """Return the LoRA matrices by name."""
        weight = next(name for name in _WEIGHTS if hasattr(self, f"_{name}"))
        return {f"{weight}_{letter}": getattr(self, f"lora_{weight}_{letter}") for letter in "ab"}

    def describe_lora(self) -> dict[str, Any]:
        """Return the arguments of `enable_lora` but for the initializers."""
        return {"rank": self.lora_rank, "lora_alpha": self.lora_alpha}

    def _list_lora_state(self) -> dict[str, Any]:
        names = self.variable_serialization_spec[self.quantization_mode]
        # Keras leaves the private `_kernel` and `_embeddings` to subclasses; the public ones have LoRA added.
        found = {name: getattr(self, f"_{name}" if name in _WEIGHTS else name, None) for name in names}
        own = {f"{STORED}own_{name}": variable for name, variable in found.items() if variable is not None}
        return own | {STORED + name: matrix for name, matrix in self.list_lora_matrices().items()}


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class OutputDense(SavesLora, keras.layers.Dense):
    """`keras.layers.Dense` of a head."""


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class TokenEmbedding(SavesLora, keras.layers.ReversibleEmbedding):
    """`keras.layers.ReversibleEmbedding` of tokens."""


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class Dense(SavesLora, keras.layers.Dense):
    """`keras.layers.Dense` computed by `project`, whose gradients are cheaper on JAX.

    With LoRA the inputs pass through its two low-rank matrices. Keras adds their product to the kernel instead, so each
    step computes the gradient of the full kernel, which is not trained.
    """

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        # `kernel` has the product of the matrices added, and looks up more; Keras leaves `_kernel` to subclasses.
        if not self.lora_enabled:
            outputs = project(inputs, self._kernel, self.bias)
        else:
            narrow = matmul(inputs, self.lora_kernel_a)
            added = matmul(narrow, self.lora_kernel_b) * (self.lora_alpha / self.lora_rank)
            outputs = project(inputs, self._kernel, self.bias) + added
        return outputs if self.activation is None else self.activation(outputs)


# Norms, by the shape of an encoder, and the base class of the layers that take this shape.


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class RmsNorm(keras.layers.Layer):
    """Divide values by their root mean square and scale each: (..., units) → (..., units).

    The weight is named as that of a layer norm, so weight decay passes it over too; Keras' own layer names it `scale`.

    Source: Zhang and Sennrich 2019; arXiv:1910.07467.
    """

    def __init__(self, epsilon: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.epsilon = epsilon

    def build(self, inputs_shape: Shape) -> None:
        self.gamma = self.add_weight(shape=(inputs_shape[-1],), initializer="ones", name="gamma")

    def call(self, inputs: Tensor) -> Tensor:
        exact = ops.cast(inputs, "float32")
        scale = ops.rsqrt(ops.mean(ops.square(exact), axis=-1, keepdims=True) + self.epsilon)
        return ops.cast(exact * scale, self.compute_dtype) * self.gamma

    def compute_output_shape(self, inputs_shape: Shape) -> Shape:
        return inputs_shape

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"epsilon": self.epsilon}


def make_norm(shape: EncoderShape, dtype: Any, name: str, epsilon: float | None = None) -> keras.layers.Layer:
    """Return a norm of the kind that an encoder has in its blocks. Default epsilon: that of the encoder."""
    options = {"epsilon": shape.layer_norm_epsilon if epsilon is None else epsilon, "dtype": dtype, "name": name}
    if shape.normalization == "rms_norm":
        return RmsNorm(**options)
    return keras.layers.LayerNormalization(center=shape.norm_bias, **options)


class ShapedLayer(keras.layers.Layer):
    """Base class of encoder layers; abstract.

    Args:
        shape: an `EncoderShape`, or its serialised form (`describe_shape`), as in a Keras config.
    """

    def __init__(self, shape: EncoderShape | Mapping[str, Any], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.shape = shape if isinstance(shape, EncoderShape) else make_shape(shape)

    def make_dense(
        self,
        units: int,
        name: str,
        activation: str | Callable | None = None,
        kind: type[keras.layers.Layer] = Dense,
        is_output: bool = False,
        **options: Any,
    ) -> Any:
        """Return a dense layer, or another class `kind`, with the kernel initializer of the encoder.

        Args:
            is_output: whether its outputs are added to the hidden states; see `output_initializer_range` of the shape.
        """
        shape = self.shape
        return kind(
            units,
            activation=activation,
            kernel_initializer=truncated_normal(
                shape.output_initializer_range if is_output else shape.initializer_range
            ),
            dtype=self.dtype_policy,
            name=name,
            **options,
        )

    def make_dropout(self, name: str) -> Dropout:
        return Dropout(self.shape.dropout_rate, dtype=self.dtype_policy, name=name)

    def make_layer_norm(self, name: str, epsilon: float | None = None) -> keras.layers.LayerNormalization:
        """Return a layer norm, with a bias if those of the encoder have one. Default epsilon: that of the encoder."""
        epsilon = self.shape.layer_norm_epsilon if epsilon is None else epsilon
        return keras.layers.LayerNormalization(
            epsilon=epsilon, center=self.shape.norm_bias, dtype=self.dtype_policy, name=name
        )

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"shape": describe_shape(self.shape)}


# Rematerialisation (gradient checkpointing): recompute part of a layer in the backward pass to save memory.


def rematerialise(layer: keras.layers.Layer, function: Callable, *inputs: Tensor, **named: Tensor) -> Tensor:
    """Call a function of a built layer, saving only its inputs for the gradients.

    It is made a pure function of the layer's weights and dropout seeds, so that the recomputation draws the same masks
    and advances no seed. `keras.RematScope` (3.15) captures both: JAX and TensorFlow then refuse to build the model,
    and PyTorch draws other masks in the recomputation, so the gradients are not those of the loss.

    Args:
        layer: the layer whose weights and seeds the function uses; it uses no other state.
        function: a function of tensors.
        inputs, named: its arguments.
    Returns:
        The outputs of the function.
    """
    weights, seeds = layer.trainable_variables, layer.non_trainable_variables

    def compute(
        weight_values: list[Tensor], seed_values: list[Tensor], *arguments: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        mapping = [*zip(weights, weight_values, strict=True), *zip(seeds, seed_values, strict=True)]
        with outside_scopes(False), keras.StatelessScope(state_mapping=mapping) as scope:
            outputs = function(*arguments[: len(inputs)], **dict(zip(named, arguments[len(inputs) :], strict=True)))
        return outputs, [scope.get_current_value(seed) for seed in seeds]

    weight_values = [ops.convert_to_tensor(weight.value) for weight in weights]
    seed_values = [ops.copy(seed.value) for seed in seeds]  # PyTorch would advance these tensors in place
    outputs, states = keras.remat(compute)(weight_values, seed_values, *inputs, *named.values())
    for seed, state in zip(seeds, states, strict=True):
        seed.assign(state)
    return outputs
