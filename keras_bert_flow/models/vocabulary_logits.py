"""Masked language model with logits at all positions."""

import keras

from keras_bert_flow.models.reentrant import ReentrantModel
from keras_bert_flow.models.with_head import encode, make_inputs


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
