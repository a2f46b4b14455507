"""Text embeddings, whose cosine measures the similarity of texts."""

import keras

from keras_bert_flow.layers.pooling import TokenPooling
from keras_bert_flow.models.backbone import refuse_pooler
from keras_bert_flow.models.saved_as import POOLING, SavedAs
from keras_bert_flow.models.with_head import ModelWithHead, encode, make_inputs


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class TextEmbedder(ModelWithHead):
    """Text embedder: pool the outputs of the encoder into one vector per text.

    Inputs: those of the backbone. Output: float32, (batch, hidden). It has no loss of its own; train it on pairs with a
    `PairEmbedder`. It is saved in the format of `sentence_transformers`.

    Args:
        backbone: built with `use_pooler=False`.
        pooling: `mean` or `max` of the real tokens, or `cls`, the first one.
        normalize: divide each vector by its length.
    Raises:
        ValueError: `pooling` is none of these, or the backbone has a pooler.
    Source: Reimers and Gurevych 2019, section 3; arXiv:1908.10084.
    """

    saved_as = SavedAs("Model", "embedder", use_pooler=False, options=POOLING)

    def __init__(self, backbone, pooling="mean", normalize=True, name="text_embedder"):
        refuse_pooler(backbone)
        inputs = make_inputs()
        vectors = embed(backbone, inputs, pooling, normalize)
        super().__init__(backbone, inputs, vectors, name)
        self.pooling = pooling
        self.normalize = normalize

    def make_losses(self):
        return None

    def make_metrics(self):
        return None

    def get_config(self):
        return super().get_config() | {"pooling": self.pooling, "normalize": self.normalize}


def embed(backbone, inputs, pooling, normalize):
    """Return the embedding of each text, float32, (texts, hidden)."""
    sequence = encode(backbone, inputs)["sequence_output"]
    return TokenPooling(pooling, normalize, dtype="float32", name="pooling")(sequence, inputs["padding_mask"])
