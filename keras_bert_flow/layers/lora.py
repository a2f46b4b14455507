"""Layers that save LoRA in full: the frozen weight and the two matrices, where Keras saves only their sum."""

from typing import Any

import keras

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

    def save_own_variables(self, store):
        super().save_own_variables(store)
        if self.lora_enabled:
            for name, variable in self._list_lora_state().items():
                store[name] = variable

    def load_own_variables(self, store):
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

    def list_lora_matrices(self):
        """Return the LoRA matrices by name."""
        weight = next(name for name in _WEIGHTS if hasattr(self, f"_{name}"))
        return {f"{weight}_{letter}": getattr(self, f"lora_{weight}_{letter}") for letter in "ab"}

    def describe_lora(self):
        """Return the arguments of `enable_lora` but for the initializers."""
        return {"rank": self.lora_rank, "lora_alpha": self.lora_alpha}

    def _list_lora_state(self):
        names = self.variable_serialization_spec[self.quantization_mode]
        # Keras leaves the private `_kernel` and `_embeddings` to subclasses; the public ones have LoRA added.
        found = {name: getattr(self, f"_{name}" if name in _WEIGHTS else name, None) for name in names}
        own = {f"{STORED}own_{name}": variable for name, variable in found.items() if variable is not None}
        return own | {STORED + name: matrix for name, matrix in self.list_lora_matrices().items()}


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class OutputDense(SavesLora, keras.layers.Dense):
    """`keras.layers.Dense` of a head."""

    def quantize(self, mode=None, type_check=True, config=None):
        """Quantise as Keras does, without its type check, which rejects subclasses."""
        super().quantize(mode, type_check=False, config=config)


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class TokenEmbedding(SavesLora, keras.layers.ReversibleEmbedding):
    """`keras.layers.ReversibleEmbedding` of tokens."""

    def quantize(self, mode=None, type_check=True, config=None):
        """Quantise as Keras does, without its type check, which rejects subclasses."""
        super().quantize(mode, type_check=False, config=config)
