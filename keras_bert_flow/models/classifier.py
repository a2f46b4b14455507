"""Sort texts into classes."""

import keras

from keras_bert_flow.models.backbone import require_pooler
from keras_bert_flow.models.base import encode, make_inputs
from keras_bert_flow.models.defaults import token_accuracy, token_loss
from keras_bert_flow.models.labelled import BertWithClasses


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class BertTextClassifier(BertWithClasses):
    """Give one logit a class to each text or pair of texts: pooled output, dropout, dense.

    Inputs: those of the backbone. Output: float32 logits, (batch, num_classes). `compile()` without a loss takes the
    cross-entropy of integer labels, (batch,).

    Args:
        labels: names of the classes, in the order of their ids; saved in the model directory.
    Raises:
        ValueError: there are fewer than two classes, not `num_classes` labels, or no pooler.
    Source: Devlin et al. 2019, section 4.1; google-research/bert, run_classifier.py, `create_model`.
    """

    def __init__(self, backbone, num_classes, dropout_rate=0.1, labels=None, name="bert_text_classifier"):
        require_pooler(backbone)
        inputs = make_inputs()
        pooled = encode(backbone, inputs)["pooled_output"]
        super().__init__(backbone, inputs, pooled, num_classes, dropout_rate, labels, name)

    def make_losses(self):
        return token_loss()

    def make_metrics(self):
        return [token_accuracy()]
