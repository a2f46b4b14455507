"""Initialise the output bias from token frequencies, and token embeddings from co-occurrence."""

import numpy as np

from keras_bert_flow.backends.values import read_variable
from keras_bert_flow.config.pretraining import PretrainingConfig
from keras_bert_flow.data.pretraining_records import PretrainingRecords
from keras_bert_flow.data.record_tokens import count_tokens, read_tokens
from keras_bert_flow.models.pretraining.bag_of_words import WORDS
from keras_bert_flow.models.with_head import ModelWithHead
from keras_bert_flow.training.pretraining.token_vectors import make_token_vectors


def set_initial_tokens(
    model: ModelWithHead, records: PretrainingRecords, settings: PretrainingConfig, seed: int
) -> None:
    """Initialise the output bias and the token embeddings of a new model according to the settings.

    The bias is set to the log of each token's share of the text, so that training starts at the unigram loss. The
    embeddings are set to vectors from co-occurrence, with their standard deviation unchanged. Special pieces and tokens
    that do not occur keep their random vectors.

    Args:
        records: of the training part; if there are many, evenly spaced ones are read.
        settings: `output_bias` and `token_embeddings` are used.
        seed: see `make_token_vectors`.
    Raises:
        ValueError: the text has too few distinct tokens.
    """
    if settings.output_bias == "zeros" and settings.token_embeddings == "random":
        return
    table = model.backbone.token_embedding.embeddings
    vocabulary_size, width = table.shape
    special = np.array(records.read_tokenizer().special_ids)
    records.wait()
    batches = list(read_tokens(records.uncut, records.record_length))  # at most 128 MB, read once for both
    if settings.output_bias == "unigram":
        counts = count_tokens(batches, vocabulary_size, special)
        for name in {"mlm", WORDS} & model.output.keys():
            model.get_layer(name).bias.assign(np.log((counts + 1.0) / (counts + 1.0).sum()).astype("float32"))
    if settings.token_embeddings == "co_occurrence":
        vectors, token_ids = make_token_vectors(batches, vocabulary_size, special, width, seed)
        values = np.array(read_variable(table))
        values[token_ids] = vectors * values.std()
        table.assign(values)
