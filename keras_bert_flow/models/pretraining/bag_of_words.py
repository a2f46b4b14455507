"""Bag-of-words pre-training loss: predict the masked tokens, without positions, from the mean hidden state."""

from dataclasses import replace
from typing import Any, Self

import keras

from keras_bert_flow.layers.heads import OutputBias, TokenPooling
from keras_bert_flow.models.heads.classifiers import transform_mean
from keras_bert_flow.models.saved_as import MEAN, WORDS_HEAD
from keras_bert_flow.models.with_head import ModelWithHead

WORDS = "words"


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class BagOfWordsPretrainer(ModelWithHead):
    """Pre-trainer with an additional bag-of-words loss: the mean of the last hidden states predicts the masked tokens.

    The masked-LM loss rewards words that fit a gap, and words of opposite meaning can fit the same gap. To predict the
    words of a text without their positions, its mean must represent what the text is about, which is what tasks need.

    Inputs: those of the pre-trainer, whose layers are reused. Outputs: those of the pre-trainer, and `words`, float32
    logits, (batch, 1, vocabulary). Their labels are the masked tokens, with higher sample weights for rare ones:
    `data.pretraining_dataset(..., bag_of_words=True)` gives both. The model directory is that of the pre-trainer with
    this head added. A head for whole texts with `pooling="bag_of_words"` continues from it.

    Args:
        pretrainer: a `MaskedLM` or a `BertPretrainer`.
        weight: of the additional loss; the others have weight 1.
    Source: Ma et al. 2024, arXiv:2401.11248, who predict all words of a passage from [CLS]. Here the mean predicts the
        masked words, which the encoder has not seen.
    Example:
        >>> backbone = kbf.BertBackbone.from_size("tiny", vocabulary_size=50, use_pooler=False)
        >>> model = kbf.BagOfWordsPretrainer(kbf.MaskedLM(backbone), weight=0.5)
        >>> model.output["words"].shape
        (None, 1, 50)
        >>> batches = kbf.pretraining_dataset("records", batch_size=4, bag_of_words=True)
    """

    default_rate = 1e-4
    has_one_width = True

    def __init__(self, pretrainer: ModelWithHead, weight: float = 1.0, name: str = "bag_of_words_pretrainer") -> None:
        backbone = pretrainer.backbone
        sequence, _ = pretrainer.get_layer("mlm_transform").input
        mean = TokenPooling(MEAN, dtype=backbone.dtype_policy, name="words_pooling")(
            sequence, pretrainer.input["padding_mask"]
        )
        mean = keras.layers.Reshape((1, backbone.hidden_dim), dtype=backbone.dtype_policy, name="words_row")(mean)
        hidden = transform_mean(backbone, mean)
        bias = OutputBias(backbone.shape.num_pieces, dtype="float32", name=WORDS)
        logits = bias(backbone.token_embedding(hidden, reverse=True))
        super().__init__(backbone, pretrainer.input, {**pretrainer.output, WORDS: logits}, name)
        self.pretrainer = pretrainer
        self.saved_as = replace(pretrainer.saved_as, head=pretrainer.saved_as.head | WORDS_HEAD)
        self.weight = weight
        self.default_loss_weights = dict.fromkeys(pretrainer.output, 1.0) | {WORDS: weight}

    def make_losses_and_metrics(self) -> tuple[Any, Any]:
        losses, metrics = self.pretrainer.make_losses_and_metrics()
        return losses | {WORDS: losses["mlm"]}, metrics

    def get_config(self) -> dict[str, Any]:
        return {
            "pretrainer": keras.saving.serialize_keras_object(self.pretrainer),
            "weight": self.weight,
            "name": self.name,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        return cls(**config | {"pretrainer": keras.saving.deserialize_keras_object(config["pretrainer"])})
