"""Build a pre-training model from a configuration, and compile it for its devices."""

from dataclasses import asdict

from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.config.pretraining import ModelConfig, PretrainingConfig
from keras_bert_flow.distribution.cluster import SINGLE, Cluster
from keras_bert_flow.models.backbone import Backbone
from keras_bert_flow.models.defaults import token_loss
from keras_bert_flow.models.pretraining.bag_of_words import BagOfWordsPretrainer
from keras_bert_flow.models.pretraining.registry import PRETRAINERS
from keras_bert_flow.models.sizes import resolve_shape
from keras_bert_flow.models.with_head import ModelWithHead
from keras_bert_flow.text.objectives import DEFAULT
from keras_bert_flow.training.loop.steps import keep_metrics_finite
from keras_bert_flow.training.optimizers.factory import find_rate_factors, make_guarded_optimizer
from keras_bert_flow.training.optimizers.guard import DEFAULT_ADVICE
from keras_bert_flow.training.optimizers.schedules import PacedSteps, WarmupDecay
from keras_bert_flow.training.pretraining.fit import check_objective

SKIPPING_ADVICE = f"{DEFAULT_ADVICE} pretraining.non_finite=skip leaves such steps out."


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


def compile_pretrainer(model: ModelWithHead, config: PipelineConfig, cluster: Cluster = SINGLE) -> None:
    """Compile a pre-training model with the optimizer, schedule and accumulation of the section `pretraining`."""
    settings = config.pretraining
    model.backbone.set_rematerialised(settings.rematerialise)
    schedule = WarmupDecay(
        settings.learning_rate, settings.warmup_steps, settings.total_steps, settings.decay, settings.decay_from
    )
    schedule = schedule if settings.minutes is None else PacedSteps(schedule)
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
    )
    sums = {name: token_loss(is_sum=True) for name in model.output} if settings.accumulate_batches > 1 else None
    losses = cluster.losses(model.output) or sums
    weights = model.default_loss_weights if losses else None
    model.compile(optimizer=optimizer, loss=losses, loss_weights=weights, auto_scale_loss=False)  # the guard scales it
    cluster.prepare(model)  # the guard gets the gradients of the whole batch
    if max_skipped_steps:
        keep_metrics_finite(model, cluster.is_everywhere)
