"""Put the masked-token head alone on the encoder."""

import keras

from keras_bert_flow.layers.heads import MaskedTokenTransform, OutputBias
from keras_bert_flow.models.backbone import INPUT_NAMES, BertBackbone
from keras_bert_flow.models.defaults import make_adamw, token_accuracy, token_loss
from keras_bert_flow.models.preset import load_preset, save_preset


def masked_token_logits(backbone, sequence, mask_positions):
    """Guess the tokens at some positions.

    Args:
        backbone: its token embedding is also the output projection.
        sequence: float, (batch, length, hidden). The backbone's output.
        mask_positions: int, (batch, masks_per_sequence).
    Returns:
        float32 logits, (batch, masks_per_sequence, vocabulary). Only the masked positions meet the vocabulary.
    Source: google-research/bert, run_pretraining.py, `get_masked_lm_output`.
    """
    masked = MaskedTokenTransform(
        backbone.hidden_dim,
        hidden_act=backbone.hidden_act,
        layer_norm_epsilon=backbone.layer_norm_epsilon,
        initializer_range=backbone.initializer_range,
        dtype=backbone.dtype_policy,
        name="mlm_transform",
    )(sequence, mask_positions)
    return OutputBias(dtype="float32", name="mlm")(backbone.token_embedding(masked, reverse=True))


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class BertMaskedLM(keras.Model):
    """Guess masked tokens, and nothing else: pre-training with the objective `mlm`.

    Inputs: those of the backbone and `mask_positions`, int32, (batch, masks_per_sequence). Output: {"mlm": float32
    logits, (batch, masks_per_sequence, vocabulary)}.

    `compile()` without a loss takes the mean cross-entropy over the real predictions; give `sample_weight`,
    {"mlm": mask_weights}.

    Args:
        backbone: built with `use_pooler=False`, as `BertForMaskedLM` of `transformers` has none either.
    Raises:
        ValueError: the backbone has a pooler, which nothing would train.
    Source: Devlin et al. 2019, section 3.1, task 1; Liu et al. 2019 (RoBERTa), section 4.2, arXiv:1907.11692.
    """

    def __init__(self, backbone, name="bert_masked_lm"):
        if backbone.use_pooler:
            raise ValueError(
                "A masked LM must stand on a backbone without a pooler, which nothing would train. "
                "Received: use_pooler=True. Try BertBackbone(..., use_pooler=False)."
            )
        inputs = {key: keras.Input((None,), dtype="int32", name=key) for key in (*INPUT_NAMES, "mask_positions")}
        sequence = backbone({key: inputs[key] for key in INPUT_NAMES})["sequence_output"]
        mlm = masked_token_logits(backbone, sequence, inputs["mask_positions"])
        super().__init__(inputs=inputs, outputs={"mlm": mlm}, name=name)
        self.dtype_policy = backbone.dtype_policy
        self.backbone = backbone

    def compile(self, optimizer=None, loss=None, *, metrics=None, weighted_metrics=None, **kwargs):
        """Compile; what is left out is AdamW at 1e-4, the cross-entropy and its accuracy."""
        super().compile(
            optimizer=make_adamw(learning_rate=1e-4) if optimizer is None else optimizer,
            loss={"mlm": token_loss()} if loss is None else loss,
            metrics=metrics,
            weighted_metrics={"mlm": [token_accuracy()]} if weighted_metrics is None else weighted_metrics,
            **kwargs,
        )

    @classmethod
    def from_preset(cls, path, **overrides):
        """Load from a model directory, ours or Hugging Face's; dropout rates, `dtype` and `name` may be overridden."""
        return load_preset("masked_lm", path, **overrides)

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
