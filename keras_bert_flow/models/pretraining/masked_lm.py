"""Put the masked-token head alone on the encoder."""

import keras

from keras_bert_flow.layers.heads import MaskedTokenTransform, OutputBias
from keras_bert_flow.models.backbone import refuse_pooler
from keras_bert_flow.models.defaults import token_accuracy, token_loss
from keras_bert_flow.models.saved_as import MASKED_LM_HEAD, SavedAs
from keras_bert_flow.models.with_head import ModelWithHead, encode, make_inputs


def masked_token_logits(backbone, sequence, mask_positions, shape=None):
    """Guess the tokens at some positions.

    Args:
        backbone: its token embedding is also the output projection.
        sequence: float, (batch, length, hidden). The backbone's output.
        mask_positions: int, (batch, masks_per_sequence).
        shape: of the encoder that the sequence is of, if not of the backbone.
    Returns:
        float32 logits, (batch, masks_per_sequence, vocabulary). Only the masked positions meet the vocabulary.
    Source: google-research/bert, run_pretraining.py, `get_masked_lm_output`.
    """
    transform = MaskedTokenTransform(shape or backbone.shape, dtype=backbone.dtype_policy, name="mlm_transform")
    masked = transform(sequence, mask_positions)
    return OutputBias(dtype="float32", name="mlm")(backbone.token_embedding(masked, reverse=True))


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class MaskedLM(ModelWithHead):
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

    saved_as = SavedAs("ForMaskedLM", "masked LM", MASKED_LM_HEAD, use_pooler=False, is_of_task=False)
    default_rate = 1e-4
    has_one_width = True

    def __init__(self, backbone, name="masked_lm"):
        refuse_pooler(backbone)
        inputs = make_inputs("mask_positions")
        sequence = encode(backbone, inputs)["sequence_output"]
        mlm = masked_token_logits(backbone, sequence, inputs["mask_positions"])
        super().__init__(backbone, inputs, {"mlm": mlm}, name)

    def make_losses(self):
        return {"mlm": token_loss()}

    def make_metrics(self):
        return {"mlm": [token_accuracy()]}
