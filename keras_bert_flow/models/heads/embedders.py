"""Text embedders: of single texts, whose cosine measures similarity, of pairs to train them, and hidden features."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
from keras import ops

from keras_bert_flow.backends.batches import Rule
from keras_bert_flow.backends.values import Tensor
from keras_bert_flow.layers.encoder import MergeTexts, SplitTexts
from keras_bert_flow.layers.heads import POOLINGS, TokenPooling
from keras_bert_flow.models.backbone import Backbone, refuse_pooler
from keras_bert_flow.models.losses import ContrastiveAccuracy, ContrastiveLoss, CosineError, CosineLoss
from keras_bert_flow.models.reentrant import ReentrantModel
from keras_bert_flow.models.saved_as import POOLING, SavedAs
from keras_bert_flow.models.with_head import ModelWithHead, compiles_shapes, encode, make_inputs


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
    Example:
        >>> embedder = kbf.TextEmbedder.from_preset("model", pooling="mean", normalize=True)
        >>> first, second = embedder.predict(["the film was fine", "the film was fine"], verbose=0)
        >>> round(float(first @ second), 3)
        1.0
    """

    saved_as = SavedAs("Model", "embedder", use_pooler=False, options=POOLING)
    default_measures = {}
    saved_arguments = POOLING

    def __init__(
        self, backbone: Backbone, pooling: str = "mean", normalize: bool = True, name: str = "text_embedder"
    ) -> None:
        refuse_pooler(backbone)
        inputs = make_inputs()
        vectors = embed(backbone, inputs, pooling, normalize)
        super().__init__(backbone, inputs, vectors, name)
        self.pooling = pooling
        self.normalize = normalize


def embed(backbone: Backbone, inputs: Mapping[str, Tensor], pooling: str, normalize: bool) -> Tensor:
    """Return the embedding of each text, float32, (texts, hidden)."""
    sequence = encode(backbone, inputs)["sequence_output"]
    return TokenPooling(pooling, normalize, dtype="float32", name="pooling")(sequence, inputs["padding_mask"])


# Train text embeddings on pairs of texts (bi-encoder).

CONTRASTIVE, COSINE = "contrastive", "cosine"
OBJECTIVES = (CONTRASTIVE, COSINE)


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class PairEmbedder(ModelWithHead):
    """Embed each text of a row, to train a `TextEmbedder` on pairs; `make_embedder()` returns it.

    Inputs: those of the backbone, int32, (batch, texts, length). Output: float32, (batch, texts, hidden). In training
    a row has two texts. The default loss of `compile()` depends on the objective:

    - `contrastive`: given the first text of a pair, find the second among all second texts of the batch. Labels are ids
      of the texts, (batch, 2), so that a text that occurs twice is not its own negative. Without labels all texts are
      taken as different. See `ContrastiveLoss`.
    - `cosine`: the cosine of both texts should equal the label, (batch,), from -1 to 1. See `CosineLoss`.

    It is saved like its embedder.

    Args:
        backbone: built with `use_pooler=False`.
        scale: factor of the cosines in the contrastive objective; 1 / temperature.
        pooling, normalize: as for `TextEmbedder`; neither objective depends on `normalize`.
    Raises:
        ValueError: `objective` or `pooling` is unknown, `scale` is not above 0, or the backbone has a pooler.
    Example:
        >>> model = kbf.PairEmbedder.from_preset("model", objective="contrastive")
        >>> model.compile()
        >>> texts = model.preprocessor(["a fine film", "a good film", "a dull story", "a slow story"])
        >>> inputs = {name: values.reshape(2, 2, -1) for name, values in texts.items()}  # two rows of a pair
        >>> history = model.fit(inputs, np.array([[0, 1], [2, 3]]), verbose=0)
        >>> embedder = model.make_embedder()
    """

    saved_as = SavedAs("Model", "embedder", use_pooler=False, options=("objective", "scale", *POOLING))
    saved_arguments = ("objective", "scale", *POOLING)

    def __init__(
        self,
        backbone: Backbone,
        objective: str = CONTRASTIVE,
        scale: float = 20.0,
        pooling: str = "mean",
        normalize: bool = True,
        name: str = "pair_embedder",
    ) -> None:
        if objective not in OBJECTIVES:
            raise ValueError(f"`objective` must be one of {', '.join(OBJECTIVES)}. Received: objective={objective!r}.")
        if not scale > 0:
            raise ValueError(f"`scale` must be above 0. Received: scale={scale}. Try 20.")
        refuse_pooler(backbone)
        inputs = make_inputs(axes=(None, None))
        merge = MergeTexts(name="merge_texts")
        vectors = embed(backbone, {key: merge(value) for key, value in inputs.items()}, pooling, normalize)
        vectors = SplitTexts(dtype="float32", name="split_texts")(vectors, inputs["padding_mask"])
        super().__init__(backbone, inputs, vectors, name)
        if objective == COSINE:
            remedy = "Divide the scores of the table by the highest one."
            self.label_rule = Rule("cosines", -1, 1, remedy, is_whole=False)
        self.objective = objective
        self.scale = scale
        self.pooling = pooling
        self.normalize = normalize

    def make_embedder(self) -> TextEmbedder:
        """Return an embedder of single texts with the same weights."""
        return TextEmbedder(self.backbone, self.pooling, self.normalize)

    def make_losses_and_metrics(self) -> tuple[Any, Any]:
        if self.objective == COSINE:
            return CosineLoss(), [CosineError(name="root_mean_squared_error")]
        return ContrastiveLoss(self.scale), [ContrastiveAccuracy(name="accuracy")]

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Tensor | None = None,
        sample_weight: Tensor | None = None,
        training: bool = True,
    ) -> Tensor:
        return super().compute_loss(x, self.number_labels(y, y_pred), y_pred, sample_weight, training=training)

    def compute_metrics(self, x: Any, y: Any, y_pred: Tensor, sample_weight: Tensor | None = None) -> Any:
        return super().compute_metrics(x, self.number_labels(y, y_pred), y_pred, sample_weight)

    def number_labels(self, y: Any, y_pred: Tensor) -> Any:
        """Return the labels, or for contrastive training without labels a distinct id for each text."""
        if y is not None or self.objective != CONTRASTIVE:
            return y
        return ops.reshape(ops.arange(2 * ops.shape(y_pred)[0], dtype="int32"), (-1, 2))


# Feature extraction from the hidden states of an encoder.

WHOLE = "none"  # no pooling: a vector for each token


def make_features_model(backbone: keras.Model, layers: Sequence[int], pooling: str = WHOLE) -> keras.Model:
    """Return a model with the weights of an encoder that outputs the concatenated hidden states of some layers.

    Layers above the highest of these are not computed.

    Args:
        backbone: a `Backbone`.
        layers: 0 is the embeddings, 1 the first block; -1 the last block, -2 the one before.
        pooling: `none`, or `mean` or `max` of the real tokens, or `cls`, the first one.
    Returns:
        A model with the inputs of the encoder. Its output is float32, (batch, length, layers * hidden), or pooled
        (batch, layers * hidden).
    Raises:
        ValueError: there is no such layer or pooling.
    Source: Devlin et al. 2019, section 5.3, where the last four give the best features; arXiv:1810.04805.
    """
    states = backbone.make_hidden_states_model().output
    for layer in layers:
        if not -len(states) <= layer < len(states):
            raise ValueError(
                f"`layers` must be from 0, the embeddings, to {len(states) - 1}, the last block, or from -1 backwards "
                f"to {-len(states)}. Received: {', '.join(map(str, layers))}."
            )
    if not layers:
        raise ValueError("`layers` must name at least one layer. Received: none. Try layers=[-1], the last one.")
    if pooling not in (WHOLE, *POOLINGS):
        raise ValueError(f"`pooling` must be one of {', '.join((WHOLE, *POOLINGS))}. Received: pooling={pooling!r}.")
    chosen = [states[layer] for layer in layers]
    features = chosen[0] if len(chosen) == 1 else ops.concatenate(chosen, axis=-1)
    if pooling != WHOLE:
        pool = TokenPooling(pooling, dtype="float32", name="pooling")
        features = pool(features, backbone.input["padding_mask"])
    model = ReentrantModel(backbone.input, features, name="features")
    model.compiles_shapes = compiles_shapes(model)
    return model
