"""Make a pre-trainer as a configuration says, and compile it for the devices that it is to be trained on."""

from keras_bert_flow.config.model import ModelConfig
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.distribution.cluster import SINGLE, Cluster
from keras_bert_flow.models.backbone import BertBackbone
from keras_bert_flow.models.bag_of_words import BagOfWordsPretrainer
from keras_bert_flow.models.defaults import token_loss
from keras_bert_flow.models.masked_lm import BertMaskedLM
from keras_bert_flow.models.pretrainer import BertPretrainer
from keras_bert_flow.text.objectives.registry import DEFAULT, find_objective
from keras_bert_flow.training.loop.finite_means import keep_metrics_finite
from keras_bert_flow.training.optimizers.factory import make_guarded_optimizer
from keras_bert_flow.training.optimizers.schedules import WarmupDecay


def make_pretrainer(
    shape: ModelConfig, vocabulary_size: int, objective: str = DEFAULT
) -> BertPretrainer | BertMaskedLM:
    """Build a model with new weights from its configuration, with the heads that the objective trains."""
    sizes = {name: getattr(shape, name) for name in ("num_layers", "hidden_dim", "num_heads", "intermediate_dim")}
    backbone = BertBackbone.from_size(
        shape.size,
        vocabulary_size,
        max_positions=shape.max_positions,
        hidden_act=shape.hidden_act,
        dropout_rate=shape.dropout_rate,
        attention_dropout_rate=shape.attention_dropout_rate,
        use_pooler=find_objective(objective).has_pairs,
        **{name: value for name, value in sizes.items() if value is not None},
    )
    return BertPretrainer(backbone) if backbone.use_pooler else BertMaskedLM(backbone)


def compile_pretrainer(
    model: BertPretrainer | BertMaskedLM | BagOfWordsPretrainer, config: PipelineConfig, cluster: Cluster = SINGLE
) -> None:
    """Compile a model as the section `pretraining` says, for batches in as many parts as it says."""
    settings = config.pretraining
    model.backbone.set_rematerialised(settings.rematerialise)
    schedule = WarmupDecay(
        settings.learning_rate, settings.warmup_steps, settings.total_steps, settings.decay, settings.decay_from
    )
    max_skipped_steps = settings.max_skipped_steps if settings.non_finite == "skip" else 0
    optimizer = make_guarded_optimizer(
        settings.optimizer,
        schedule,
        settings.weight_decay,
        settings.clip_norm,
        accumulate_batches=settings.accumulate_batches,
        max_skipped_steps=max_skipped_steps,
        precision=settings.precision,
        token_embedding_factor=(settings.token_embedding_learning_rate or settings.learning_rate)
        / settings.learning_rate,
        muon_options={
            "num_heads": model.backbone.num_heads,
            "matrix_rate_factor": settings.matrix_learning_rate / settings.learning_rate,
            "product_type": "bfloat16" if settings.precision == "mixed_bfloat16" else "float32",
        },
    )
    sums = {name: token_loss(is_sum=True) for name in model.output} if settings.accumulate_batches > 1 else None
    losses = cluster.losses(model.output) or sums
    weights = model.default_loss_weights if losses else None
    model.compile(optimizer=optimizer, loss=losses, loss_weights=weights, auto_scale_loss=False)  # the guard scales it
    cluster.prepare(model)  # gradients come to the guard as those of the whole batch
    if max_skipped_steps:
        keep_metrics_finite(model, cluster.is_everywhere)
