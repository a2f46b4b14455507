"""Create optimizers by name, with warm-up and decay, and learning rates by layer."""

from keras_bert_flow.models.defaults import EPSILON, make_adamw
from keras_bert_flow.training.optimizers.bert_adam import BertAdam, Lamb, Muon
from keras_bert_flow.training.optimizers.guard import DEFAULT_ADVICE, GuardedOptimizer
from keras_bert_flow.training.optimizers.schedules import LINEAR, AccumulatedSteps, PacedSteps, WarmupDecay

ADAMW, BERT_ADAM, LAMB, MUON = OPTIMIZERS = "adamw", "bert_adam", "lamb", "muon"


def adamw(learning_rate, total_steps, warmup_steps=0, weight_decay=0.01, clip_norm=1.0, decay=LINEAR, epsilon=EPSILON):
    """Return AdamW with learning rate warm-up, and without weight decay on biases and layer norms.

    Args:
        learning_rate: peak learning rate.
        total_steps: step at which the rate reaches 0.
        warmup_steps: number of warm-up steps.
        weight_decay: decoupled decay.
        clip_norm: maximum global norm of the gradient.
        decay: learning rate decay: `linear`, `cosine` or `constant`.
        epsilon: see `make_optimizer`.
    Source: Devlin et al. 2019, appendix A.2.
    Example:
        >>> optimizer = kbf.adamw(learning_rate=1e-4, total_steps=1000, warmup_steps=100)
        >>> classifier = kbf.TextClassifier.from_preset("model", labels=["negative", "positive"])
        >>> classifier.compile(optimizer)
    """
    schedule = WarmupDecay(learning_rate, warmup_steps, total_steps, decay)
    return make_optimizer(ADAMW, schedule, weight_decay, clip_norm, epsilon=epsilon)


def make_optimizer(
    kind,
    learning_rate,
    weight_decay=0.01,
    clip_norm=1.0,
    rate_factors=None,
    accumulate_batches=1,
    epsilon=EPSILON,
    muon_options=None,
):
    """Return an optimizer by name, without weight decay on biases and layer norms.

    Args:
        kind: `adamw`, `bert_adam`, `lamb` or `muon`.
        learning_rate: a float, or a schedule of steps.
        weight_decay: decoupled decay.
        clip_norm: maximum global norm of the gradient.
        rate_factors: weight path → factor of its learning rate; see `find_rate_factors`.
        accumulate_batches: number of batches whose mean gradient makes a step.
        epsilon: added to the root of the second moment, the divisor of a step.
        muon_options: further arguments of `Muon`, including `matrices`; ignored for other kinds.
    Raises:
        ValueError: `kind` is unknown.
    """
    accumulation = {}
    if accumulate_batches > 1:
        accumulation["gradient_accumulation_steps"] = accumulate_batches
        if not isinstance(learning_rate, float):
            learning_rate = AccumulatedSteps(learning_rate, accumulate_batches)
    if kind == ADAMW and not rate_factors:
        return make_adamw(learning_rate, weight_decay, clip_norm, epsilon, **accumulation)
    options = {"weight_decay": weight_decay, "global_clipnorm": clip_norm, "epsilon": epsilon} | accumulation
    options["rate_factors"] = rate_factors
    if kind == ADAMW:
        return BertAdam(learning_rate, bias_correction=True, name=ADAMW, **options)
    if kind == BERT_ADAM:
        return BertAdam(learning_rate, **options)
    if kind == LAMB:
        return Lamb(learning_rate, **options)
    if kind == MUON:
        return Muon(learning_rate, **(options | (muon_options or {})))
    raise ValueError(f"The optimizer must be one of {', '.join(OPTIMIZERS)}. Received: {kind!r}. Use one of these.")


def make_guarded_optimizer(
    kind,
    learning_rate,
    weight_decay=0.01,
    clip_norm=1.0,
    rate_factors=None,
    accumulate_batches=1,
    epsilon=EPSILON,
    muon_options=None,
    max_skipped_steps=0,
    precision="float32",
    advice=DEFAULT_ADVICE,
):
    """Return a `GuardedOptimizer`, for `compile(..., auto_scale_loss=False)`.

    Args:
        kind, learning_rate, weight_decay, clip_norm, rate_factors, accumulate_batches, epsilon, muon_options: see
            `make_optimizer`.
        max_skipped_steps, advice: see `GuardedOptimizer`.
        precision: with `mixed_float16` the loss is scaled.
    """
    scales_loss = precision == "mixed_float16"
    is_guard_accumulating = scales_loss or max_skipped_steps > 0
    inner_batches, outer_batches = (1, accumulate_batches) if is_guard_accumulating else (accumulate_batches, 1)
    inner = make_optimizer(
        kind, learning_rate, weight_decay, clip_norm, rate_factors, inner_batches, epsilon, muon_options
    )
    paced = learning_rate if isinstance(learning_rate, PacedSteps) else None
    return GuardedOptimizer(inner, max_skipped_steps, outer_batches, scales_loss, paced, advice=advice)


# Layer-wise learning rate decay: a factor for each weight by its depth.


def find_rate_factors(backbone, layer_decay: float = 1.0, token_embedding_factor: float = 1.0) -> dict[str, float]:
    """Return path → learning rate factor for the weights of an encoder: `layer_decay` to the power of the layers above.

    The top block has `layer_decay`, the one below it its square, and the embeddings, below all blocks, the smallest
    factor. Weights that are not in the result, those of heads and the pooler, have factor 1.

    Args:
        backbone: a `Backbone`, which knows the depth of its weights.
        layer_decay: 1.0 gives all weights the same rate.
        token_embedding_factor: an additional factor of the token embeddings.
    Returns:
        The factors; empty if all are 1.
    Raises:
        ValueError: `layer_decay` is not in (0, 1].
    Source: Clark et al. 2020 (ELECTRA), section 3.1 and appendix A, arXiv:2003.10555. Their code gives the top block
    the square; here it is one layer below the head.
    """
    if not 0 < layer_decay <= 1:
        raise ValueError(f"`layer_decay` must be above 0 and at most 1. Received: layer_decay={layer_decay}. Try 0.9.")
    if layer_decay == token_embedding_factor == 1:
        return {}
    depths = backbone.find_depths()
    head_depth = max(depths.values()) + 1
    factors = {path: layer_decay ** (head_depth - depth) for path, depth in depths.items()}
    for weight in backbone.token_embedding.weights:
        factors[weight.path] *= token_embedding_factor
    return factors
