"""Pre-training models: built from a configuration or loaded, initialised from the tokens of the text, and compiled."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import coo_matrix, csr_matrix
from scipy.sparse.linalg import svds

from keras_bert_flow.backends.values import read_variable
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.config.pretraining import ModelConfig, PretrainingConfig
from keras_bert_flow.conversion.model_directory import load_pretrainer
from keras_bert_flow.data.pretraining_records import PretrainingRecords, count_tokens, read_tokens
from keras_bert_flow.distribution.cluster import SINGLE, Cluster
from keras_bert_flow.models.backbone import Backbone
from keras_bert_flow.models.defaults import token_loss
from keras_bert_flow.models.pretraining.bag_of_words import WORDS, BagOfWordsPretrainer
from keras_bert_flow.models.saved_as import PRETRAINERS
from keras_bert_flow.models.sizes import resolve_shape
from keras_bert_flow.models.with_head import ModelWithHead
from keras_bert_flow.text.objectives import DEFAULT
from keras_bert_flow.text.objectives.mlm import LayerTransfer
from keras_bert_flow.training.fit import check_objective, check_shape
from keras_bert_flow.training.loop.steps import keep_metrics_finite
from keras_bert_flow.training.optimizers.adam import find_rate_factors, make_guarded_optimizer
from keras_bert_flow.training.optimizers.guard import DEFAULT_ADVICE
from keras_bert_flow.training.optimizers.schedules import PacedSteps, StagedWarmup, WarmupDecay

SKIPPING_ADVICE = f"{DEFAULT_ADVICE} pretraining.non_finite=skip leaves such steps out."
_logger = logging.getLogger(__name__)


def make_pretrainer(
    shape: ModelConfig, vocabulary_size: int, objective: str = DEFAULT, settings: PretrainingConfig | None = None
) -> ModelWithHead:
    """Build a pre-training model with new weights and the heads of the objective."""
    settings = settings or PretrainingConfig()
    sizes = asdict(resolve_shape(shape, vocabulary_size))
    check_objective(objective, shape.family, settings.bag_of_words)
    kind = PRETRAINERS.find(objective)
    options = {name: getattr(settings, name) for name in kind.settings}
    model = kind(Backbone(shape.family, use_pooler=kind.saved_as.use_pooler, **sizes), **options)
    return BagOfWordsPretrainer(model, settings.bag_of_words) if settings.bag_of_words else model


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


def compile_pretrainer(
    model: ModelWithHead, config: PipelineConfig, cluster: Cluster = SINGLE, transfer: LayerTransfer | None = None
) -> None:
    """Compile a pre-training model with the optimizer, schedule and accumulation of the section `pretraining`.

    Args:
        transfer: first steps, in which the blocks alone are trained, all at once or one after the other.
    Raises:
        ValueError: there is a transfer with several replicas of TensorFlow, whose weights a step cannot put back.
    """
    settings, turns = config.pretraining, {}
    model.backbone.set_rematerialised(settings.rematerialise)
    model.backbone.set_scanned(settings.scan_layers)
    total_steps = settings.total_steps - (transfer.steps if transfer else 0)
    schedule: Any = WarmupDecay(
        settings.learning_rate, settings.warmup_steps, total_steps, settings.decay, settings.decay_from
    )
    schedule = schedule if settings.minutes is None else PacedSteps(schedule)
    if transfer is not None:
        if not cluster.skips_steps:
            raise ValueError(
                "`distillation.transfer` before the predictions must have one device on tensorflow. Received: "
                f"{cluster.devices} devices. Set distribution.kind to single, or transfer to auxiliary."
            )
        schedule = StagedWarmup(schedule, settings.learning_rate, transfer.stage_steps, transfer.steps)
        blocks = model.backbone.blocks
        turns = {
            weight.path: transfer.find_turn(layer) for layer, block in enumerate(blocks) for weight in block.weights
        }
    slower = (settings.token_embedding_learning_rate or settings.learning_rate) / settings.learning_rate
    max_skipped_steps = settings.max_skipped_steps if settings.non_finite == "skip" else 0
    optimizer = make_guarded_optimizer(
        settings.optimizer,
        schedule,
        settings.weight_decay,
        settings.clip_norm,
        accumulate_batches=settings.accumulate_batches,
        max_skipped_steps=max_skipped_steps,
        precision=settings.precision,
        advice=SKIPPING_ADVICE if cluster.skips_steps and not max_skipped_steps else DEFAULT_ADVICE,
        rate_factors=find_rate_factors(model.backbone, token_embedding_factor=slower),
        muon_options={
            "matrices": model.list_matrices(),
            "matrix_rate_factor": settings.matrix_learning_rate / settings.learning_rate,
            "product_type": "bfloat16" if settings.precision == "mixed_bfloat16" else "float32",
        },
        turns=turns,
    )
    make_loss = cluster.make_loss or (partial(token_loss, is_sum=True) if settings.accumulate_batches > 1 else None)
    losses = make_loss and {name: make_loss() for name in model.output}
    weights = model.default_loss_weights if losses else None
    model.compile(optimizer=optimizer, loss=losses, loss_weights=weights, auto_scale_loss=False)  # the guard scales it
    cluster.prepare(model)  # the guard gets the gradients of the whole batch
    if max_skipped_steps:
        keep_metrics_finite(model, cluster.is_everywhere)


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
        headed: Any = getattr(model, "student", model)  # a student whose layers are compared is called as a whole
        for name in {"mlm", WORDS} & model.output.keys():
            headed.get_layer(name).bias.assign(np.log((counts + 1.0) / (counts + 1.0).sum()).astype("float32"))
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
    counts, totals = counts[token_ids][:, token_ids].tocoo(), totals[token_ids]
    contexts = totals**CONTEXT_POWER
    contexts /= contexts.sum()
    values = np.log(counts.data / (totals[counts.row] * contexts[counts.col]))
    is_positive = values > 0
    places = counts.row[is_positive], counts.col[is_positive]
    information = csr_matrix((values[is_positive], places), counts.shape)
    start = np.random.default_rng(0).normal(size=len(token_ids))  # the same in every process
    left, values, _ = svds(information, k=width, v0=start)
    # A column and its negative fit equally well, and the processor decides between them by how it rounds.
    largest = left[np.abs(left).argmax(axis=0), np.arange(width)]
    vectors = left * np.sign(largest) * np.sqrt(values)
    return vectors - vectors.mean(axis=0), token_ids
