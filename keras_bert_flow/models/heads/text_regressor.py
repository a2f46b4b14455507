"""Text regression."""

import keras

from keras_bert_flow.models.batch_checks import Rule
from keras_bert_flow.models.heads.text_pooling import choose_pooling, pool_text, with_pooling
from keras_bert_flow.models.losses import SquaredError
from keras_bert_flow.models.saved_as import CLASSIFIER_HEAD, TEXT_POOLING, SavedAs
from keras_bert_flow.models.with_head import ModelWithHead, classify, make_inputs


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class TextRegressor(ModelWithHead):
    """Regression of one number per text or text pair, such as a similarity: pooled output, dropout, dense.

    Inputs: those of the backbone. Output: float32, (batch,). Default loss of `compile()`: the mean squared error.

    Args:
        pooling: `cls`, `mean` or `bag_of_words`; see `text_pooling.pool_text`. Only `cls` needs a
            pooler, and it is the default where there is one; elsewhere `mean` is.
    Raises:
        ValueError: `pooling` does not fit the backbone.
    Source: Devlin et al. 2019, section 4.1 (STS-B).
    """

    saved_as = SavedAs(
        "ForSequenceClassification",
        "regressor",
        CLASSIFIER_HEAD,
        outputs=(1, 1),
        problem_type="regression",
        options=TEXT_POOLING,
    )

    def __init__(self, backbone, dropout_rate=0.1, pooling=None, name="text_regressor"):
        inputs, pooling = make_inputs(), choose_pooling(backbone, pooling)
        numbers = classify(backbone, pool_text(backbone, inputs, pooling), 1, dropout_rate)
        super().__init__(backbone, inputs, numbers[:, 0], name)
        self.dropout_rate = dropout_rate
        self.pooling = pooling
        self.saved_as = with_pooling(self.saved_as, pooling)

    def make_losses(self):
        return SquaredError()

    def make_metrics(self):
        return [keras.metrics.RootMeanSquaredError()]

    def make_rules(self, x):
        return {None: Rule("numbers", None, None, "Correct or leave out the row.", is_whole=False)}

    def get_config(self):
        return super().get_config() | {"dropout_rate": self.dropout_rate, "pooling": self.pooling}
