"""Pooling of a text into the vector from which its head predicts."""

from dataclasses import replace

import keras

from keras_bert_flow.layers.activations import get_activation
from keras_bert_flow.layers.dense import Dense
from keras_bert_flow.layers.initializers import truncated_normal
from keras_bert_flow.layers.pooling import TokenPooling
from keras_bert_flow.models.backbone import refuse_pooler, require_pooler
from keras_bert_flow.models.poolings import BAG_OF_WORDS, CLS, MEAN, TEXT_POOLINGS
from keras_bert_flow.models.saved_as import WORDS_TRANSFORM
from keras_bert_flow.models.with_head import encode


def pool_text(backbone, inputs, pooling):
    """Pool each text into one vector, float, (batch, hidden).

    Args:
        pooling: `cls`, the pooler's output for the first token (Devlin et al. 2019, section 3), or `mean`, the mean of
            the last hidden states of the real tokens. Pre-training without sentence pairs does not train [CLS], so its
            content has to be learned from the labels. `bag_of_words`: the mean through the layers with which
            bag-of-words pre-training predicts words from it; see `transform_mean`.

    For RoBERTa and ELECTRA, `transformers` also has dropout before the dense layer of this head. Here that layer is the
    backbone's pooler, shared with multiple choice heads, which lack this dropout in `transformers`; so no head has it.

    Raises:
        ValueError: `pooling` is none of these, or the backbone has a pooler that it does not need, or lacks one.
    """
    if pooling not in TEXT_POOLINGS:
        raise ValueError(f"`pooling` must be one of {', '.join(TEXT_POOLINGS)}. Received: pooling={pooling!r}.")
    if pooling == CLS:
        require_pooler(backbone)
        return encode(backbone, inputs)["pooled_output"]
    refuse_pooler(backbone)
    sequence = encode(backbone, inputs)["sequence_output"]
    mean = TokenPooling(MEAN, dtype="float32", name="pooling")(sequence, inputs["padding_mask"])
    return transform_mean(backbone, mean) if pooling == BAG_OF_WORDS else mean


def choose_pooling(backbone, pooling):
    """Return the given pooling, or without one `cls` if the backbone has a pooler, else `mean`."""
    return (CLS if backbone.use_pooler else MEAN) if pooling is None else pooling


def with_pooling(saved_as, pooling):
    """Return the `SavedAs` of a head for whole texts, with the layers of its pooling, if any."""
    return replace(saved_as, head=saved_as.head | WORDS_TRANSFORM) if pooling == BAG_OF_WORDS else saved_as


def transform_mean(backbone, mean):
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
