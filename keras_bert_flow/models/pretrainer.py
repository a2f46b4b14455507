"""Put the two heads of pre-training on the encoder."""

import keras

from keras_bert_flow.layers.initializers import truncated_normal
from keras_bert_flow.models.backbone import INPUT_NAMES, BertBackbone, require_pooler
from keras_bert_flow.models.defaults import make_adamw, token_accuracy, token_loss
from keras_bert_flow.models.masked_lm import masked_token_logits
from keras_bert_flow.models.preset import load_preset, save_preset


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class BertPretrainer(keras.Model):
    """Guess masked tokens, and whether the second sentence follows the first.

    Inputs: those of the backbone and `mask_positions`, int32, (batch, masks_per_sequence). Outputs, float32 logits:
    `mlm`, (batch, masks_per_sequence, vocabulary), and `nsp`, (batch, 2), where label 0 is "follows" and 1 is
    "random" (objective `mlm_nsp`) or "swapped" (`mlm_sop`). Only the masked positions meet the vocabulary.

    `compile()` without a loss takes the mean cross-entropy of each, over the real predictions; give `sample_weight`
    for both outputs, {"mlm": mask_weights, "nsp": ones}.

    Raises:
        ValueError: the backbone has no pooler.
    Source: Devlin et al. 2019, section 3.1; google-research/bert, run_pretraining.py.
    """

    def __init__(self, backbone, name="bert_pretrainer"):
        policy = backbone.dtype_policy
        inputs = {key: keras.Input((None,), dtype="int32", name=key) for key in (*INPUT_NAMES, "mask_positions")}
        require_pooler(backbone)
        encoded = backbone({key: inputs[key] for key in INPUT_NAMES})
        mlm = masked_token_logits(backbone, encoded["sequence_output"], inputs["mask_positions"])
        nsp = keras.layers.Dense(
            2, kernel_initializer=truncated_normal(backbone.initializer_range), dtype="float32", name="nsp"
        )(encoded["pooled_output"])
        super().__init__(inputs=inputs, outputs={"mlm": mlm, "nsp": nsp}, name=name)
        self.dtype_policy = policy
        self.backbone = backbone

    def compile(self, optimizer=None, loss=None, *, metrics=None, weighted_metrics=None, **kwargs):
        """Compile; what is left out is AdamW at 1e-4, the two cross-entropies and their accuracies."""
        super().compile(
            optimizer=make_adamw(learning_rate=1e-4) if optimizer is None else optimizer,
            loss={"mlm": token_loss(), "nsp": token_loss()} if loss is None else loss,
            metrics=metrics,
            weighted_metrics={"mlm": [token_accuracy()], "nsp": [token_accuracy()]}
            if weighted_metrics is None
            else weighted_metrics,
            **kwargs,
        )

    @classmethod
    def from_preset(cls, path, **overrides):
        """Load from a model directory, ours or Hugging Face's; dropout rates, `dtype` and `name` may be overridden."""
        return load_preset("pretrainer", path, **overrides)

    def save_to_preset(self, path, **details):
        """Write a model directory; see `conversion.model_directory.save_model_directory`."""
        save_preset(self, path, **details)

    def get_config(self):
        return {"backbone": keras.saving.serialize_keras_object(self.backbone), "name": self.name}

    @classmethod
    def from_config(cls, config):
        backbone = config["backbone"]
        if not isinstance(backbone, BertBackbone):
            backbone = keras.saving.deserialize_keras_object(backbone)
        return cls(backbone, name=config["name"])
