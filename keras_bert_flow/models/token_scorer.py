"""Score given tokens with a masked language model."""

import keras
from keras import ops

from keras_bert_flow.models.reentrant import ReentrantModel
from keras_bert_flow.models.with_head import compiles_shapes

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
