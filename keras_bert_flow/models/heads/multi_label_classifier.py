"""Multi-label text classification."""

import keras

from keras_bert_flow.models.batch_checks import Rule
from keras_bert_flow.models.heads.labelled import ModelWithClasses
from keras_bert_flow.models.heads.text_pooling import choose_pooling, pool_text, with_pooling
from keras_bert_flow.models.losses import LabelAccuracy, LabelLoss
from keras_bert_flow.models.saved_as import CLASSES, CLASSIFIER_HEAD, TEXT_POOLING, SavedAs
from keras_bert_flow.models.with_head import make_inputs


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class MultiLabelClassifier(ModelWithClasses):
    """Multi-label text classifier, one independent logit per label: pooled output, dropout, dense.

    Inputs: those of the backbone. Output: float32 logits, (batch, num_classes); a text has a label if its logit is
    above 0. Default loss of `compile()`: the binary cross-entropy of (batch, num_classes) zeros and ones, averaged over
    labels.

    Args:
        num_classes: their number; not needed with `labels`.
        labels: names in the order of the outputs; saved in the model directory.
        pooling: `cls`, `mean` or `bag_of_words`; see `text_pooling.pool_text`. Only `cls` needs a
            pooler, and it is the default where there is one; elsewhere `mean` is.
    Raises:
        ValueError: there are no classes, not `num_classes` labels, or `pooling` does not fit the backbone.
    """

    saved_as = SavedAs(
        "ForSequenceClassification",
        "multi-label classifier",
        CLASSIFIER_HEAD,
        problem_type="multi_label_classification",
        options=CLASSES + TEXT_POOLING,
    )

    least_classes = 1

    def __init__(
        self, backbone, num_classes=None, dropout_rate=0.1, labels=None, pooling=None, name="multi_label_classifier"
    ):
        inputs, pooling = make_inputs(), choose_pooling(backbone, pooling)
        pooled = pool_text(backbone, inputs, pooling)
        super().__init__(backbone, inputs, pooled, num_classes, dropout_rate, labels, name)
        self.pooling = pooling
        self.saved_as = with_pooling(self.saved_as, pooling)

    def make_losses(self):
        return LabelLoss()

    def make_metrics(self):
        return [LabelAccuracy(name="accuracy")]

    def make_rules(self, x):
        return {None: Rule("labels", 0, 1, "Give each text a 0 or a 1 for each label.", is_whole=False)}

    def get_config(self):
        return super().get_config() | {"pooling": self.pooling}
