"""Dense layer with cheaper gradients, with and without LoRA."""

import keras

from keras_bert_flow.backends.products import matmul
from keras_bert_flow.backends.projection import project
from keras_bert_flow.layers.lora import SavesLora


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class Dense(SavesLora, keras.layers.Dense):
    """`keras.layers.Dense` computed by `project`, whose gradients are cheaper on JAX.

    With LoRA the inputs pass through its two low-rank matrices. Keras adds their product to the kernel instead, so each
    step computes the gradient of the full kernel, which is not trained.
    """

    def call(self, inputs, training=None):
        if not self.lora_enabled:
            outputs = project(inputs, self.kernel, self.bias)
        else:
            # `kernel` has the product of the matrices added; `_kernel` is an attribute that Keras leaves to subclasses.
            narrow = matmul(inputs, self.lora_kernel_a)
            added = matmul(narrow, self.lora_kernel_b) * (self.lora_alpha / self.lora_rank)
            outputs = project(inputs, self._kernel, self.bias) + added
        return outputs if self.activation is None else self.activation(outputs)

    def quantize(self, mode=None, type_check=True, config=None):
        """Quantise as Keras does, without its type check, which rejects subclasses."""
        super().quantize(mode, type_check=False, config=config)
