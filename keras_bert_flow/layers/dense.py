"""Dense layer that costs what its matrix products cost."""

import keras

from keras_bert_flow.backends.products import matmul
from keras_bert_flow.backends.projection import project


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class Dense(keras.layers.Dense):
    """`keras.layers.Dense` by way of `project`, whose gradients are cheaper on jax.

    With LoRA the inputs go through its two narrow matrices. Keras adds their product to the kernel instead, so each
    step computes the gradient of a whole kernel that is not trained.
    """

    def call(self, inputs, training=None):
        if not self.lora_enabled:
            outputs = project(inputs, self.kernel, self.bias)
        else:
            # `kernel` has the matrices added to it; `_kernel` is what Keras gives to its subclasses.
            narrow = matmul(inputs, self.lora_kernel_a)
            added = matmul(narrow, self.lora_kernel_b) * (self.lora_alpha / self.lora_rank)
            outputs = project(inputs, self._kernel, self.bias) + added
        return outputs if self.activation is None else self.activation(outputs)

    def quantize(self, mode=None, type_check=True, config=None):
        """Quantise as Keras does, which refuses subclasses by default."""
        super().quantize(mode, type_check=False, config=config)
