"""Functional models on a trained encoder: scores of given tokens, vocabulary logits, hidden features."""

from collections.abc import Sequence

import keras
from keras import ops

from keras_bert_flow.layers.heads import POOLINGS, TokenPooling
from keras_bert_flow.models.reentrant import ReentrantModel
from keras_bert_flow.models.with_head import compiles_shapes, encode, make_inputs

LOG_PROBABILITIES = "log_probabilities"


def make_token_scorer(masked_lm: keras.Model) -> keras.Model:
    """Return a model with the weights of a masked LM that outputs the log-probability of given tokens.

    Only these are transferred from the device: 512 masks have 15.6 million logits with a vocabulary of 30,522.

    Args:
        masked_lm: its output `mlm` is float32 logits, (batch, masks, vocabulary).
    Returns:
        A model with the inputs of the masked LM, and `target_ids`, int32, (batch, masks), the tokens to score. Its
        output is {"log_probabilities": float32, (batch, masks)}, in nats.
    """
    target_ids = keras.Input((None,), dtype="int32", name="target_ids")
    logits = masked_lm.output["mlm"]
    chosen = ops.take_along_axis(logits, ops.expand_dims(target_ids, -1), axis=-1)  # (batch, masks, 1)
    scores = ops.squeeze(chosen, -1) - ops.logsumexp(logits, axis=-1)
    inputs = dict(masked_lm.input) | {"target_ids": target_ids}
    model = ReentrantModel(inputs, {LOG_PROBABILITIES: scores}, name="token_scorer")
    model.compiles_shapes = compiles_shapes(model)
    return model


# Masked language model with logits at all positions.


def make_vocabulary_model(masked_lm: keras.Model) -> keras.Model:
    """Return a model with the weights of a `MaskedLM` that outputs logits at all positions, as in `transformers`.

    Returns:
        A model with the inputs of the backbone. Its output is float32 logits, (batch, length, vocabulary).
    """
    backbone, transform = masked_lm.backbone, masked_lm.get_layer("mlm_transform")
    inputs = make_inputs()
    hidden = transform.layer_norm(transform.dense(encode(backbone, inputs)["sequence_output"]))
    if masked_lm.tie_weights:
        logits = backbone.token_embedding(hidden, reverse=True)
    else:
        logits = masked_lm.get_layer("mlm_decoder")(hidden)
    logits = masked_lm.get_layer("mlm")(logits)
    model = ReentrantModel(inputs, logits, name="vocabulary_logits")
    model.backbone = backbone
    return model


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
    features = chosen[0] if len(chosen) == 1 else keras.ops.concatenate(chosen, axis=-1)
    if pooling != WHOLE:
        pool = TokenPooling(pooling, dtype="float32", name="pooling")
        features = pool(features, backbone.input["padding_mask"])
    model = ReentrantModel(backbone.input, features, name="features")
    model.compiles_shapes = compiles_shapes(model)
    return model
