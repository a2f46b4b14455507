"""Turn texts into vectors whose cosines say how alike the texts are."""

import keras

from keras_bert_flow.layers.pooling import TokenPooling
from keras_bert_flow.models.backbone import refuse_pooler
from keras_bert_flow.models.saved_as import POOLING, SavedAs
from keras_bert_flow.models.with_head import ModelWithHead, encode, make_inputs


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class TextEmbedder(ModelWithHead):
    """Pool the outputs of the encoder into one vector a text.

    Inputs: those of the backbone. Output: float32, (batch, hidden). It is trained on pairs, by a `PairEmbedder`;
    alone it has no loss. Saved as `sentence_transformers` reads it.

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
    """Return a vector for each text, float32, (texts, hidden)."""
    sequence = encode(backbone, inputs)["sequence_output"]
    return TokenPooling(pooling, normalize, dtype="float32", name="pooling")(sequence, inputs["padding_mask"])
