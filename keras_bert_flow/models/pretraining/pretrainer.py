"""BERT pre-training: the encoder with a masked-LM head and a sentence-pair head."""

import keras

from keras_bert_flow.layers.initializers import truncated_normal
from keras_bert_flow.models.backbone import require_pooler
from keras_bert_flow.models.defaults import token_accuracy, token_loss
from keras_bert_flow.models.pretraining.masked_lm import masked_token_logits, save_masked_lm
from keras_bert_flow.models.saved_as import MASKED_LM_HEAD, PAIRS_HEAD, SavedAs
from keras_bert_flow.models.with_head import ModelWithHead, encode, make_inputs, project


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class BertPretrainer(ModelWithHead):
    """BERT pre-training model: masked LM and next-sentence or sentence-order prediction.

    Inputs: those of the backbone and `mask_positions`, int32, (batch, masks_per_sequence). Outputs, float32 logits:
    `mlm`, (batch, masks_per_sequence, vocabulary), and `nsp`, (batch, 2), where label 0 is "follows" and 1 is
    "random" (objective `mlm_nsp`) or "swapped" (`mlm_sop`). Only masked positions are projected to the vocabulary.

    Default loss of `compile()`: the mean cross-entropy of each output over the real predictions, with `sample_weight`
    for both outputs, {"mlm": mask_weights, "nsp": ones}.

    Args:
        backbone: built with its pooler.
        tie_weights: whether the token embedding is also the output projection, as in the paper.
    Raises:
        ValueError: the backbone has no pooler.
    Source: Devlin et al. 2019, section 3.1; google-research/bert, run_pretraining.py.
    """

    saved_as = SavedAs("ForPreTraining", "pre-trainer", MASKED_LM_HEAD | PAIRS_HEAD, is_of_task=False)
    default_rate = 1e-4
    has_one_width = True

    def __init__(self, backbone, tie_weights=True, name="bert_pretrainer"):
        require_pooler(backbone)
        inputs = make_inputs("mask_positions")
        encoded = encode(backbone, inputs)
        sequence, positions = encoded["sequence_output"], inputs["mask_positions"]
        mlm = masked_token_logits(backbone, sequence, positions, tie_weights=tie_weights)
        nsp = project(backbone, encoded["pooled_output"], 2, "nsp", truncated_normal)
        super().__init__(backbone, inputs, {"mlm": mlm, "nsp": nsp}, name)
        self.tie_weights = tie_weights
        self.saved_as = save_masked_lm(self.saved_as, tie_weights)

    def get_config(self):
        return super().get_config() | {"tie_weights": self.tie_weights}

    def make_losses(self):
        return {"mlm": token_loss(), "nsp": token_loss()}

    def make_metrics(self):
        return {"mlm": [token_accuracy()], "nsp": [token_accuracy()]}
