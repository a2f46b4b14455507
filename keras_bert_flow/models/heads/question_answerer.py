"""Extractive question answering: find the answer span in a text."""

import keras

from keras_bert_flow.backends.checked_batches import as_host_array
from keras_bert_flow.layers.heads import SpanScores
from keras_bert_flow.models.backbone import refuse_pooler
from keras_bert_flow.models.batch_checks import position_rule
from keras_bert_flow.models.defaults import token_accuracy, token_loss
from keras_bert_flow.models.saved_as import SPAN_HEAD, SavedAs
from keras_bert_flow.models.with_head import ModelWithHead, encode, make_inputs, project


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class QuestionAnswerer(ModelWithHead):
    """Extractive question answering model, with start and end logits for each token.

    Inputs: those of the backbone, with the question in segment 0 and the text in segment 1. Outputs: `start` and `end`,
    float32 logits, (batch, length), very low for padding. Default loss of `compile()`: the mean of both
    cross-entropies. Labels are {"start": (batch,), "end": (batch,)}, token positions, the end inclusive. If there is no
    answer, both are 0, the position of [CLS].

    Args:
        backbone: built with `use_pooler=False`.
    Raises:
        ValueError: the backbone has a pooler.
    Source: Devlin et al. 2019, sections 4.2 and 4.3; google-research/bert, run_squad.py, `create_model`.
    """

    saved_as = SavedAs("ForQuestionAnswering", "question answerer", SPAN_HEAD, use_pooler=False, outputs=(2, 2))

    default_loss_weights = {"start": 0.5, "end": 0.5}

    def __init__(self, backbone, name="question_answerer"):
        refuse_pooler(backbone)
        inputs = make_inputs()
        logits = project(backbone, encode(backbone, inputs)["sequence_output"], 2, "span")
        scores = SpanScores(dtype="float32", name="span_scores")(logits, inputs["padding_mask"])
        super().__init__(backbone, inputs, scores, name)

    def make_losses(self):
        return {"start": token_loss(), "end": token_loss()}

    def make_metrics(self):
        return {"start": [token_accuracy()], "end": [token_accuracy()]}

    def make_rules(self, x):
        mask = as_host_array(x.get("padding_mask"))
        if mask is None:
            return {}
        is_real = mask != 0
        is_real[:, :1] = True  # the place of no answer, also in an empty row
        return {name: position_rule(f"{name} labels", is_real) for name in ("start", "end")}
