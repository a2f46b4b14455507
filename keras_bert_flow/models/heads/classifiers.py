"""Heads with named classes or numbers for a text or its tokens: classifiers and the regressor."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import keras

from keras_bert_flow.backends.batches import Rule, class_rule
from keras_bert_flow.backends.values import Tensor
from keras_bert_flow.layers.dense import Dense, get_activation, truncated_normal
from keras_bert_flow.layers.heads import TokenPooling
from keras_bert_flow.models.backbone import Backbone, refuse_pooler, require_pooler
from keras_bert_flow.models.defaults import token_accuracy, token_loss
from keras_bert_flow.models.losses import LabelAccuracy, LabelLoss, SquaredError, TagAccuracy, TagLoss
from keras_bert_flow.models.saved_as import (
    BAG_OF_WORDS,
    CLASSES,
    CLASSIFIER_HEAD,
    CLS,
    MEAN,
    TEXT_POOLING,
    TEXT_POOLINGS,
    WORDS_TRANSFORM,
    SavedAs,
)
from keras_bert_flow.models.with_head import (
    ModelWithHead,
    classify,
    encode,
    make_inputs,
    transform,
    with_transform,
)


class ModelWithClasses(ModelWithHead):
    """Base class of models with one logit per class; abstract.

    Without `num_classes` there are as many as `labels`.

    Raises:
        ValueError: there are fewer than `least_classes` classes, not `num_classes` labels, or neither is given.
    """

    least_classes = 2
    saved_arguments: tuple[str, ...] = ("num_classes", "dropout_rate", "labels")

    def __init__(
        self,
        backbone: Backbone,
        inputs: dict[str, Tensor],
        hidden: Tensor,
        num_classes: int | None,
        dropout_rate: float,
        labels: Sequence[str] | None,
        name: str,
    ) -> None:
        if num_classes is None and labels is not None:
            num_classes = len(labels)
        if num_classes is None:
            raise ValueError(
                "A classifier must be given its classes. Received: neither `labels` nor `num_classes`. "
                "Try labels=['no', 'yes']."
            )
        if num_classes < self.least_classes:
            raise ValueError(
                f"`num_classes` must be at least {self.least_classes}. Received: num_classes={num_classes}. "
                "Count the labels."
            )
        if labels is not None and len(labels) != num_classes:
            raise ValueError(
                f"`labels` must hold `num_classes` names. Received: {len(labels)} labels, num_classes={num_classes}. "
                f"Try num_classes={len(labels)}."
            )
        super().__init__(backbone, inputs, classify(backbone, hidden, num_classes, dropout_rate), name)
        self.num_classes = num_classes
        self.dropout_rate = dropout_rate
        self.labels = None if labels is None else tuple(labels)


# Token classification, such as named entity recognition.


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class TokenClassifier(ModelWithClasses):
    """Token classifier: sequence output, the family's `transform`, if any, dropout, dense.

    Inputs: those of the backbone. Output: float32 logits, (batch, length, num_classes). Default loss of `compile()`:
    the mean cross-entropy over tokens, weighted by `sample_weight`, (batch, length). Labels below 0 have weight 0.
    `kbf.TagLoss(reduction="sum")` is for weights that are already divided, such as those of `task_dataset`.

    Args:
        backbone: built with `use_pooler=False`.
        num_classes: their number; not needed with `labels`.
        labels: names of the tags, in the order of their ids; saved in the model directory.
    Raises:
        ValueError: there are fewer than two tags, not `num_classes` labels, or the backbone has a pooler.
    Source: Devlin et al. 2019, section 5.3.
    Example:
        >>> tagger = kbf.TokenClassifier.from_preset("model", labels=["O", "B-PER", "I-PER"])
        >>> tagger.compile()
        >>> inputs = tagger.preprocessor(["the film was fine"])
        >>> labels = np.full(inputs["token_ids"].shape, -100)
        >>> labels[:, 1:5] = 0  # the words; -100 means that a token has no label
        >>> history = tagger.fit(inputs, labels, verbose=0)
    """

    saved_as = SavedAs("ForTokenClassification", "token classifier", CLASSIFIER_HEAD, use_pooler=False, options=CLASSES)
    default_measures = {None: (TagLoss, partial(TagAccuracy, name="accuracy"))}
    takes_packed_rows = True

    def __init__(
        self,
        backbone: Backbone,
        num_classes: int | None = None,
        dropout_rate: float = 0.1,
        labels: Sequence[str] | None = None,
        name: str = "token_classifier",
    ) -> None:
        refuse_pooler(backbone)
        inputs = make_inputs()
        hidden = transform(backbone, encode(backbone, inputs)["sequence_output"])
        super().__init__(backbone, inputs, hidden, num_classes, dropout_rate, labels, name)
        self.saved_as = with_transform(self.saved_as, backbone)
        remedy = f"Number the {self.num_classes:,} tags from 0; a token without one has -100."
        self.label_rule = Rule("token labels", None, self.num_classes - 1, remedy)  # a label below 0 is none


# Pooling of a text into the vector from which its head predicts.


def pool_text(backbone: Backbone, inputs: Mapping[str, Tensor], pooling: str | None) -> tuple[Tensor, str]:
    """Pool each text into one vector, float, (batch, hidden); return it and the pooling.

    Args:
        pooling: `cls`, the pooler's output for the first token (Devlin et al. 2019, section 3), or `mean`, the mean of
            the last hidden states of the real tokens. Pre-training without sentence pairs does not train [CLS], so its
            content has to be learned from the labels. `bag_of_words`: the mean through the layers with which
            bag-of-words pre-training predicts words from it; see `transform_mean`. Default: `cls` if the backbone has a
            pooler, else `mean`. The first two go through the family's `transform`.

    For RoBERTa and ELECTRA, `transformers` also has dropout before the dense layer of this head. Here that layer is the
    backbone's pooler, shared with multiple choice heads, which lack this dropout in `transformers`; so no head has it.

    Raises:
        ValueError: `pooling` is none of these, or the backbone has a pooler that it does not need, or lacks one.
    """
    if pooling is None:
        pooling = CLS if backbone.use_pooler else MEAN
    if pooling not in TEXT_POOLINGS:
        raise ValueError(f"`pooling` must be one of {', '.join(TEXT_POOLINGS)}. Received: pooling={pooling!r}.")
    if pooling == CLS:
        require_pooler(backbone)
        return transform(backbone, encode(backbone, inputs)["pooled_output"]), pooling
    refuse_pooler(backbone)
    sequence = encode(backbone, inputs)["sequence_output"]
    mean = TokenPooling(MEAN, dtype="float32", name="pooling")(sequence, inputs["padding_mask"])
    return transform_mean(backbone, mean) if pooling == BAG_OF_WORDS else transform(backbone, mean), pooling


def with_pooling(saved_as: SavedAs, pooling: str, backbone: Backbone) -> SavedAs:
    """Return the `SavedAs` of a head for whole texts, with the layers of its pooling, if any."""
    if pooling == BAG_OF_WORDS:
        return replace(saved_as, head=saved_as.head | WORDS_TRANSFORM)
    return with_transform(saved_as, backbone)


def transform_mean(backbone: Backbone, mean: Tensor) -> Tensor:
    """Transform the mean hidden state for bag-of-words prediction: dense, activation, layer norm.

    Args:
        mean: float, (..., hidden).
    Returns:
        float, (..., hidden). Its product with the embedding of a token, and a bias, is the logit of that token.
    """
    hidden = Dense(
        backbone.shape.embedding_dim,
        activation=get_activation(backbone.hidden_act),
        kernel_initializer=truncated_normal(backbone.initializer_range),
        dtype=backbone.dtype_policy,
        name="words_dense",
    )(mean)
    return keras.layers.LayerNormalization(
        epsilon=backbone.shape.layer_norm_epsilon, dtype=backbone.dtype_policy, name="words_norm"
    )(hidden)


# Text classification.


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class TextClassifier(ModelWithClasses):
    """Classifier of texts or text pairs: pooled output, dropout, dense.

    Inputs: those of the backbone. Output: float32 logits, (batch, num_classes). Default loss of `compile()`: the
    cross-entropy of integer labels, (batch,).

    Args:
        num_classes: their number; not needed with `labels`.
        labels: names of the classes, in the order of their ids; saved in the model directory.
        pooling: `cls`, `mean` or `bag_of_words`; see `pool_text`. Only `cls` needs a pooler, and it
            is the default where there is one; elsewhere `mean` is.
    Raises:
        ValueError: there are fewer than two classes, not `num_classes` labels, or `pooling` does not fit the backbone.
    Source: Devlin et al. 2019, section 4.1; google-research/bert, run_classifier.py, `create_model`.
    Example:
        >>> classifier = kbf.TextClassifier.from_preset("model", labels=["negative", "positive"])
        >>> classifier.compile()
        >>> history = classifier.fit(["the film was fine", "a dull story"], ["positive", "negative"], verbose=0)
        >>> classifier.predict(["a fine story"], verbose=0).shape
        (1, 2)
    """

    saved_as = SavedAs(
        "ForSequenceClassification",
        "classifier",
        CLASSIFIER_HEAD,
        outputs=(2, float("inf")),
        problem_type="single_label_classification",
        options=CLASSES + TEXT_POOLING,
    )
    default_measures = {None: (token_loss, token_accuracy)}
    saved_arguments = (*ModelWithClasses.saved_arguments, "pooling")

    def __init__(
        self,
        backbone: Backbone,
        num_classes: int | None = None,
        dropout_rate: float = 0.1,
        labels: Sequence[str] | None = None,
        pooling: str | None = None,
        name: str = "text_classifier",
    ) -> None:
        inputs = make_inputs()
        pooled, pooling = pool_text(backbone, inputs, pooling)
        super().__init__(backbone, inputs, pooled, num_classes, dropout_rate, labels, name)
        self.pooling = pooling
        self.saved_as = with_pooling(self.saved_as, pooling, backbone)
        self.label_rule = class_rule(self.output.shape)


# Multi-label text classification.


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class MultiLabelClassifier(ModelWithClasses):
    """Multi-label text classifier, one independent logit per label: pooled output, dropout, dense.

    Inputs: those of the backbone. Output: float32 logits, (batch, num_classes); a text has a label if its logit is
    above 0. Default loss of `compile()`: the binary cross-entropy of (batch, num_classes) zeros and ones, averaged over
    labels.

    Args:
        num_classes: their number; not needed with `labels`.
        labels: names in the order of the outputs; saved in the model directory.
        pooling: `cls`, `mean` or `bag_of_words`; see `pool_text`. Only `cls` needs a pooler, and it
            is the default where there is one; elsewhere `mean` is.
    Raises:
        ValueError: there are no classes, not `num_classes` labels, or `pooling` does not fit the backbone.
    Example:
        >>> classifier = kbf.MultiLabelClassifier.from_preset("model", labels=["funny", "sad", "long"])
        >>> classifier.compile()
        >>> history = classifier.fit(["a sad film", "a long story"], np.array([[0, 1, 0], [0, 0, 1]]), verbose=0)
        >>> classifier.predict(["a fine story"], verbose=0).shape
        (1, 3)
    """

    saved_as = SavedAs(
        "ForSequenceClassification",
        "multi-label classifier",
        CLASSIFIER_HEAD,
        problem_type="multi_label_classification",
        options=CLASSES + TEXT_POOLING,
    )
    default_measures = {None: (LabelLoss, partial(LabelAccuracy, name="accuracy"))}
    label_rule = Rule("labels", 0, 1, "Give each text a 0 or a 1 for each label.", is_whole=False)
    least_classes = 1
    saved_arguments = (*ModelWithClasses.saved_arguments, "pooling")

    def __init__(
        self,
        backbone: Backbone,
        num_classes: int | None = None,
        dropout_rate: float = 0.1,
        labels: Sequence[str] | None = None,
        pooling: str | None = None,
        name: str = "multi_label_classifier",
    ) -> None:
        inputs = make_inputs()
        pooled, pooling = pool_text(backbone, inputs, pooling)
        super().__init__(backbone, inputs, pooled, num_classes, dropout_rate, labels, name)
        self.pooling = pooling
        self.saved_as = with_pooling(self.saved_as, pooling, backbone)


# Text regression.


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class TextRegressor(ModelWithHead):
    """Regression of one number per text or text pair, such as a similarity: pooled output, dropout, dense.

    Inputs: those of the backbone. Output: float32, (batch,). Default loss of `compile()`: the mean squared error.

    Args:
        pooling: `cls`, `mean` or `bag_of_words`; see `pool_text`. Only `cls` needs a pooler, and it
            is the default where there is one; elsewhere `mean` is.
    Raises:
        ValueError: `pooling` does not fit the backbone.
    Source: Devlin et al. 2019, section 4.1 (STS-B).
    Example:
        >>> regressor = kbf.TextRegressor.from_preset("model")
        >>> regressor.compile()
        >>> pairs = [("the film was fine", "a fine film"), ("the film was fine", "a dull story")]
        >>> history = regressor.fit(pairs, np.array([4.5, 1.0]), verbose=0)
        >>> regressor.predict(pairs, verbose=0).shape
        (2,)
    """

    saved_as = SavedAs(
        "ForSequenceClassification",
        "regressor",
        CLASSIFIER_HEAD,
        outputs=(1, 1),
        problem_type="regression",
        options=TEXT_POOLING,
    )
    default_measures = {None: (SquaredError, keras.metrics.RootMeanSquaredError)}
    label_rule = Rule("numbers", None, None, "Correct or leave out the row.", is_whole=False)
    saved_arguments = ("dropout_rate", "pooling")

    def __init__(
        self, backbone: Backbone, dropout_rate: float = 0.1, pooling: str | None = None, name: str = "text_regressor"
    ) -> None:
        inputs = make_inputs()
        pooled, pooling = pool_text(backbone, inputs, pooling)
        numbers = classify(backbone, pooled, 1, dropout_rate)
        super().__init__(backbone, inputs, numbers[:, 0], name)
        self.dropout_rate = dropout_rate
        self.pooling = pooling
        self.saved_as = with_pooling(self.saved_as, pooling, backbone)
