"""Fused query-key-value projection, with separate LoRA matrices for each of the three."""

import keras
from keras import ops

from keras_bert_flow.layers.dense import Dense

PARTS = ("query", "key", "value")


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class QueryKeyValue(Dense):
    """Fused query-key-value projection: a dense layer whose outputs are ordered (heads, 3, head_dim).

    With this order, sharding the last axis of the kernel evenly gives each device whole heads.

    Args:
        num_heads: number of attention heads.
    """

    lora_enabled: bool  # defined by Keras' Dense

    def __init__(self, units, num_heads, **kwargs):
        super().__init__(units, **kwargs)
        self.num_heads = num_heads

    def enable_lora(self, rank, lora_alpha=None, a_initializer="he_uniform", b_initializer="zeros", parts=PARTS):
        """Freeze the kernel and add LoRA to it, as `keras.layers.Dense.enable_lora` does.

        Args:
            parts: which of `PARTS` to adapt, each with its own matrices, (inputs, rank) and (rank, units / 3).
        Raises:
            ValueError: the layer is not built, or LoRA is already enabled.
        """
        if not self.built or self.lora_enabled:
            raise ValueError(
                "LoRA must be enabled once, on a layer that is built. Received: "
                f"{self.name}, built={self.built}, lora_enabled={self.lora_enabled}."
            )
        inputs, units = self._kernel.shape
        shapes = {"a": (inputs, rank), "b": (rank, units // len(PARTS))}
        initializers = {"a": a_initializer, "b": b_initializer}
        self._tracker.unlock()  # as in Keras' `enable_lora`; there is no public API
        self._lora_matrices = {
            part: tuple(
                self.add_weight(
                    name=f"lora_{part}_{letter}", shape=shape, initializer=initializers[letter], dtype="float32"
                )
                for letter, shape in shapes.items()
            )
            for part in PARTS
            if part in parts
        }
        self._kernel.trainable = False
        self._tracker.lock()
        self.lora_enabled = True
        self.lora_rank, self.lora_alpha = rank, rank if lora_alpha is None else lora_alpha

    # Keras adds the product of these two to the kernel when it returns, quantises or saves the kernel.

    @property
    def lora_kernel_a(self):
        """The first LoRA matrices of all parts side by side, (inputs, parts · rank)."""
        return ops.concatenate([first for first, _ in self._lora_matrices.values()], axis=1)

    @property
    def lora_kernel_b(self):
        """The second LoRA matrices of all parts, stacked, (parts · rank, units); 0 in the columns of other parts."""
        return ops.concatenate([self._spread(part, second) for part, (_, second) in self._lora_matrices.items()])

    def _spread(self, part, matrix):
        """Move the columns of a part, (rank, units / 3), to their positions in the kernel, (rank, units)."""
        place, rank = PARTS.index(part), matrix.shape[0]
        heads = ops.reshape(matrix, (rank, self.num_heads, 1, -1))  # (rank, heads, 1, head_dim)
        padded = ops.pad(heads, ((0, 0), (0, 0), (place, len(PARTS) - 1 - place), (0, 0)))
        return ops.reshape(padded, (rank, self.units))

    def list_lora(self):
        """Return part → its two LoRA matrices."""
        return dict(self._lora_matrices)

    def list_lora_matrices(self):
        return {
            f"{part}_{letter}": matrix
            for part, pair in self._lora_matrices.items()
            for letter, matrix in zip("ab", pair, strict=True)
        }

    def describe_lora(self):
        return super().describe_lora() | {"parts": list(self._lora_matrices)}

    def get_config(self):
        return super().get_config() | {"num_heads": self.num_heads}
