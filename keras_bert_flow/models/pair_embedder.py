"""Train vectors of texts on pairs."""

import keras
from keras import ops

from keras_bert_flow.layers.groups import MergeTexts, PairSimilarity
from keras_bert_flow.models.backbone import refuse_pooler
from keras_bert_flow.models.base import BertWithHead, make_inputs
from keras_bert_flow.models.defaults import token_accuracy, token_loss
from keras_bert_flow.models.embedder import BertTextEmbedder, embed
from keras_bert_flow.models.losses import SquaredError

OBJECTIVES = ("in_batch", "cosine")


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class BertPairEmbedder(BertWithHead):
    """Compare the two texts of each row by their vectors, to train a `BertTextEmbedder`: `make_embedder()`.

    Inputs: those of the backbone, int32, (batch, 2, length). Output, float32, by objective:

    - `in_batch`: (batch, batch), the cosine of each first text with each second one over `temperature`. Of these its
      own second text is the right one, and all others of the batch are wrong. `compile()` takes the cross-entropy, and
      there need be no labels; if there are, they are 0 to batch - 1.
    - `cosine`: (batch,), the cosine of both. `compile()` takes its mean squared error from labels of -1 to 1.

    It is saved as its embedder is.

    Args:
        backbone: built with `use_pooler=False`.
        pooling, normalize: as for `BertTextEmbedder`; neither objective depends on `normalize`.
    Raises:
        ValueError: `objective` or `pooling` is unknown, `temperature` is not above 0, or the backbone has a pooler.
    Source: Henderson et al. 2017, section 4.4, arXiv:1705.00652 (in-batch); Reimers and Gurevych 2019, section 3,
    regression objective. The temperature is that of `MultipleNegativesRankingLoss` of `sentence_transformers`.
    """

    def __init__(
        self,
        backbone,
        objective="in_batch",
        temperature=0.05,
        pooling="mean",
        normalize=True,
        name="bert_pair_embedder",
    ):
        if objective not in OBJECTIVES:
            raise ValueError(f"`objective` must be one of {', '.join(OBJECTIVES)}. Received: objective={objective!r}.")
        if not temperature > 0:
            raise ValueError(f"`temperature` must be above 0. Received: temperature={temperature}. Try 0.05.")
        refuse_pooler(backbone)
        inputs = make_inputs(axes=(2, None))
        merge = MergeTexts(name="merge_pairs")
        merged = {key: merge(value) for key, value in inputs.items()}
        vectors = embed(backbone, merged, pooling, normalize)
        divisor = temperature if objective == "in_batch" else None
        similarity = PairSimilarity(divisor, dtype="float32", name="similarity")(vectors)
        super().__init__(backbone, inputs, similarity, name)
        self.objective = objective
        self.temperature = temperature
        self.pooling = pooling
        self.normalize = normalize

    def make_embedder(self):
        """Return a model of single texts with the same weights."""
        return BertTextEmbedder(self.backbone, self.pooling, self.normalize)

    def make_losses(self):
        return token_loss() if self.objective == "in_batch" else SquaredError()

    def make_metrics(self):
        return [token_accuracy() if self.objective == "in_batch" else keras.metrics.RootMeanSquaredError()]

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return super().compute_loss(x, self._label(y, y_pred), y_pred, sample_weight, training=training)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        return super().compute_metrics(x, self._label(y, y_pred), y_pred, sample_weight)

    def get_config(self):
        return super().get_config() | {
            "objective": self.objective,
            "temperature": self.temperature,
            "pooling": self.pooling,
            "normalize": self.normalize,
        }

    def _label(self, y, y_pred):
        """Return the labels, or where in-batch training has none the number of each row."""
        if y is not None or self.objective != "in_batch":
            return y
        return ops.arange(ops.shape(y_pred)[0], dtype="int32")
