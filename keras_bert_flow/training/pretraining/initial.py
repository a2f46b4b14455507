"""Initial weights of pre-training: those of a model directory, or new ones set from the tokens of the text."""

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from scipy.sparse import coo_matrix, csr_matrix
from scipy.sparse.linalg import svds

from keras_bert_flow.backends.values import read_variable
from keras_bert_flow.config.pretraining import ModelConfig, PretrainingConfig
from keras_bert_flow.conversion.model_directory import load_pretrainer
from keras_bert_flow.data.pretraining_records import PretrainingRecords, count_tokens, read_tokens
from keras_bert_flow.models.pretraining.bag_of_words import WORDS
from keras_bert_flow.models.pretraining.registry import PRETRAINERS
from keras_bert_flow.models.with_head import ModelWithHead
from keras_bert_flow.training.pretraining.fit import check_shape

_logger = logging.getLogger(__name__)


def load_initial_model(folder: Path, shape: ModelConfig, objective: str, settings: PretrainingConfig) -> ModelWithHead:
    """Load a model with the heads of the objective; those that the directory lacks are new, with a warning.

    Args:
        folder: a model directory.
        shape: the required shape; dropout rates are taken from it.
        objective: of the records.
        settings: of the heads.
    Raises:
        FileNotFoundError: the directory is incomplete.
        ValueError: the model has another shape, or is damaged.
    """
    rates = {name: getattr(shape, name) for name in ("dropout_rate", "attention_dropout_rate")}
    kind = PRETRAINERS.find(objective)
    options = {name: getattr(settings, name) for name in kind.settings}
    model, new_layers = load_pretrainer(kind, folder, bag_of_words=settings.bag_of_words, options=options, **rates)
    check_shape(model.backbone.get_config(), shape, folder)
    if new_layers:
        _logger.warning("%s has no weights for %s, which begin anew.", folder, ", ".join(new_layers))
    return model


# Initialise the output bias from token frequencies, and token embeddings from co-occurrence.


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


# Token embeddings from co-occurrence: positive pointwise mutual information (PPMI) factorized by an SVD.

WINDOW = 5  # tokens on each side
PASSAGE_TOKENS = 512  # tokens that co-occur with each other: the length of a text rather than a sentence
CONTEXT_POWER = 0.75  # smooths the context distribution, else rare contexts would have the largest information


def make_token_vectors(
    rows: Sequence[np.ndarray], vocabulary_size: int, left_out: np.ndarray, width: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return co-occurrence vectors of all tokens with neighbours, from near neighbours and whole passages.

    Near neighbours describe how a token is used, whole passages its topic. The latter are more useful for tasks, the
    former for predicting masked tokens. Each makes up half of the columns, with norm 1 for every token. A random
    rotation then distributes both over all columns, as a new network expects.

    Args:
        rows: batches of sequences, int, (sequences, length).
        vocabulary_size, left_out: see `count_neighbours`.
        width: of a vector.
        seed: of the rotation.
    Returns:
        vectors, float32, (tokens, width), with mean square 1; and the ids of the tokens, (tokens,).
    Raises:
        ValueError: there are not more tokens than `width`.
    """
    counts = [count(rows, vocabulary_size, left_out) for count in (count_neighbours, count_together)]
    widths = (width - width // 2, width // 2)
    (near, near_ids), (together, together_ids) = map(find_token_vectors, counts, widths)
    token_ids = np.intersect1d(near_ids, together_ids)
    if len(token_ids) <= width:
        raise ValueError(
            "Token embeddings from co-occurrence need more different tokens in the text than `hidden_dim`. Received: "
            f"{len(token_ids)} tokens, hidden_dim={width}. Give more text, or token_embeddings: random."
        )
    halves = [near[np.isin(near_ids, token_ids)], together[np.isin(together_ids, token_ids)]]
    vectors = np.concatenate([half / np.linalg.norm(half, axis=1, keepdims=True) for half in halves], axis=1)
    rotation, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(width, width)))
    return (vectors / np.sqrt(np.mean(vectors**2)) @ rotation).astype(np.float32), token_ids


def count_neighbours(rows: Iterable[np.ndarray], vocabulary_size: int, left_out: np.ndarray) -> csr_matrix:
    """Count co-occurrences within a window, with weight 1 / d at distance d.

    Args:
        rows: batches of sequences, int, (sequences, length).
        vocabulary_size: number of pieces.
        left_out: ids that are not counted, such as [SEP] and [PAD].
    Returns:
        float64, (vocabulary_size, vocabulary_size), symmetric.
    """
    shape = (vocabulary_size, vocabulary_size)
    is_counted = np.ones(vocabulary_size, bool)
    is_counted[left_out] = False
    counts = csr_matrix(shape)
    for batch in rows:
        for distance in range(1, min(WINDOW, batch.shape[1] - 1) + 1):
            left, right = batch[:, :-distance].ravel(), batch[:, distance:].ravel()
            is_pair = is_counted[left] & is_counted[right]
            weights = np.full(is_pair.sum(), 1 / distance)
            counts = counts + coo_matrix((weights, (left[is_pair], right[is_pair])), shape).tocsr()
    return counts + counts.T


def count_together(rows: Iterable[np.ndarray], vocabulary_size: int, left_out: np.ndarray) -> csr_matrix:
    """Count the passages, of up to `PASSAGE_TOKENS` tokens, in which two tokens occur; arguments as `count_neighbours`.

    Returns:
        float64, (vocabulary_size, vocabulary_size), symmetric, 0 on the diagonal.
    """
    counts = csr_matrix((vocabulary_size, vocabulary_size))
    for batch in rows:
        for start in range(0, batch.shape[1], PASSAGE_TOKENS):
            passages = batch[:, start : start + PASSAGE_TOKENS]
            places = np.repeat(np.arange(len(passages)), passages.shape[1])
            is_counted = ~np.isin(passages.ravel(), left_out)
            found = places[is_counted], passages.ravel()[is_counted]
            occurs = csr_matrix((np.ones(len(found[0]), np.float32), found), (len(passages), vocabulary_size))
            occurs.data[:] = 1  # regardless of how often a token occurs
            counts = counts + (occurs.T @ occurs)
    counts.setdiag(0)
    counts.eliminate_zeros()
    return csr_matrix(counts, dtype=np.float64)


def find_token_vectors(counts: csr_matrix, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Factorize positive pointwise mutual information by a truncated singular value decomposition.

    Args:
        counts: see `count_neighbours`.
        width: of a vector.
    Returns:
        vectors, float64, (tokens, width), with mean 0, each column times the root of its singular value; and the ids of
        the tokens with neighbours, (tokens,).
    Raises:
        ValueError: there are not more tokens than `width`.
    Source: Levy, Goldberg and Dagan 2015, sections 2 and 3 (context distribution smoothing, symmetric singular values),
    10.1162/tacl_a_00134; the weights of distances are those of GloVe (Pennington et al. 2014, section 4.2).
    """
    totals = np.asarray(counts.sum(axis=0)).ravel()
    token_ids = np.flatnonzero(totals)
    if len(token_ids) <= width:
        raise ValueError(
            "Token embeddings from co-occurrence need more different tokens in the text than `hidden_dim`. Received: "
            f"{len(token_ids)} tokens for {width} columns. Give more text, or token_embeddings: random."
        )
    information = _positive_information(counts[token_ids][:, token_ids].tocoo(), totals[token_ids])
    start = np.random.default_rng(0).normal(size=len(token_ids))  # the same in every process
    left, values, _ = svds(information, k=width, v0=start)
    vectors = left * np.sqrt(values)
    return vectors - vectors.mean(axis=0), token_ids


def _positive_information(counts: coo_matrix, totals: np.ndarray) -> csr_matrix:
    contexts = totals**CONTEXT_POWER
    contexts /= contexts.sum()
    information = np.log(counts.data / (totals[counts.row] * contexts[counts.col]))
    is_positive = information > 0
    places = counts.row[is_positive], counts.col[is_positive]
    return csr_matrix((information[is_positive], places), counts.shape)
