"""Feature extraction from the hidden states of an encoder."""

from collections.abc import Sequence

import keras

from keras_bert_flow.layers.pooling import POOLINGS, TokenPooling
from keras_bert_flow.models.reentrant import ReentrantModel
from keras_bert_flow.models.with_head import compiles_shapes

WHOLE = "none"  # no pooling: a vector for each token


def make_features_model(backbone, layers: Sequence[int], pooling: str = WHOLE) -> keras.Model:
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
