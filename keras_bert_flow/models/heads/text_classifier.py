"""Text classification."""

import keras

from keras_bert_flow.models.batch_checks import class_rule
from keras_bert_flow.models.defaults import token_accuracy, token_loss
from keras_bert_flow.models.heads.labelled import ModelWithClasses
from keras_bert_flow.models.heads.text_pooling import choose_pooling, pool_text, with_pooling
from keras_bert_flow.models.saved_as import CLASSES, CLASSIFIER_HEAD, TEXT_POOLING, SavedAs
from keras_bert_flow.models.with_head import make_inputs


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class TextClassifier(ModelWithClasses):
    """Classifier of texts or text pairs: pooled output, dropout, dense.

    Inputs: those of the backbone. Output: float32 logits, (batch, num_classes). Default loss of `compile()`: the
    cross-entropy of integer labels, (batch,).

    Args:
        num_classes: their number; not needed with `labels`.
        labels: names of the classes, in the order of their ids; saved in the model directory.
        pooling: `cls`, `mean` or `bag_of_words`; see `text_pooling.pool_text`. Only `cls` needs a
            pooler, and it is the default where there is one; elsewhere `mean` is.
    Raises:
        ValueError: there are fewer than two classes, not `num_classes` labels, or `pooling` does not fit the backbone.
    Source: Devlin et al. 2019, section 4.1; google-research/bert, run_classifier.py, `create_model`.
    """

    saved_as = SavedAs(
        "ForSequenceClassification",
        "classifier",
        CLASSIFIER_HEAD,
        outputs=(2, float("inf")),
        problem_type="single_label_classification",
        options=CLASSES + TEXT_POOLING,
    )

    def __init__(self, backbone, num_classes=None, dropout_rate=0.1, labels=None, pooling=None, name="text_classifier"):
        inputs, pooling = make_inputs(), choose_pooling(backbone, pooling)
        pooled = pool_text(backbone, inputs, pooling)
        super().__init__(backbone, inputs, pooled, num_classes, dropout_rate, labels, name)
        self.pooling = pooling
        self.saved_as = with_pooling(self.saved_as, pooling)

    def make_losses(self):
        return token_loss()

    def make_metrics(self):
        return [token_accuracy()]

    def make_rules(self, x):
        return {None: class_rule(self.output.shape)}

    def get_config(self):
        return super().get_config() | {"pooling": self.pooling}
