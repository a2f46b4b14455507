"""Pre-train a BERT from records to a model directory."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras

from keras_bert_flow.config import ModelConfig, PipelineConfig
from keras_bert_flow.conversion.model_directory import save_model_directory
from keras_bert_flow.data.pretraining import PretrainingRecords, ordered_batches, pretraining_dataset
from keras_bert_flow.distribution.cluster import SINGLE, Cluster
from keras_bert_flow.distribution.starting import start_cluster
from keras_bert_flow.keys import pretraining_inputs, pretraining_key
from keras_bert_flow.models.backbone import BertBackbone
from keras_bert_flow.models.defaults import token_loss
from keras_bert_flow.models.flops import pretraining_flops
from keras_bert_flow.models.masked_lm import BertMaskedLM
from keras_bert_flow.models.pretrainer import BertPretrainer
from keras_bert_flow.models.sizes import get_size
from keras_bert_flow.records.manifest import read_manifest
from keras_bert_flow.records.publish import Contents, publish
from keras_bert_flow.text.objectives import MLM_NSP, SENTENCE_TASKS
from keras_bert_flow.text.vocabulary import VOCABULARY_FILE
from keras_bert_flow.training.best import BestCheckpoint
from keras_bert_flow.training.checkpoints import Checkpoints
from keras_bert_flow.training.finite_means import keep_metrics_finite
from keras_bert_flow.training.identity import STEERING, pretraining_identity
from keras_bert_flow.training.initial_model import load_initial_model
from keras_bert_flow.training.logs import read_log
from keras_bert_flow.training.loop import Borders, train
from keras_bert_flow.training.optimizers import make_guarded_optimizer
from keras_bert_flow.training.precision import arithmetic, seed_everything
from keras_bert_flow.training.schedules import WarmupDecay
from keras_bert_flow.training.several import publish_together
from keras_bert_flow.training.validation import score_pretraining

CHECKPOINTS, BEST = "checkpoints", "best"
EARLIER = "earlier"  # in the manifest: other settings that the first steps were made with
SETTINGS = {"name", "seed", "backend", "model", "pretraining"}


def pretrain(
    config: PipelineConfig,
    records: str | Path,
    output: str | Path,
    report: Callable[[Mapping[str, Any]], None] = print,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    initial_model: str | Path | None = None,
) -> Path:
    """Publish a folder with `model/`, `log.jsonl` and `metrics.json`; at once where it is already there.

    A run that was killed goes on from its newest checkpoint, to the same weights, bit for bit.

    Args:
        config: its sections `model` and `pretraining`, and the seed, count; the objective is that of the records. Its
            section `distribution` says which devices do it; see `distribution.starting`.
        records: what `kbf records` made.
        output: the folder.
        report: called with every line of the log.
        callbacks: of Keras or your own. An epoch is the steps from one line of the log to the next; metrics are fetched
            from the device at its end only. `training.callbacks.UserCallbacks` says when each is called and with what.
        initial_model: a model directory to go on from, ours or Hugging Face's, of the shape that the configuration says
            and with the vocabulary of the records. The optimizer and its schedule are new, as are heads that it lacks.
    Raises:
        FileNotFoundError: a file of the records, or of the initial model, is missing.
        ValueError: the records are damaged or do not fit the model, the initial model does not fit either, or a
            checkpoint is of another run.
        Interrupted: SIGTERM or SIGINT came; run again to go on.
    """
    records, initial = Path(records), None if initial_model is None else Path(initial_model)
    pretraining_key(config, records, initial)  # says what is wrong with the inputs before anything is looked at

    # What is there already, or in the way, needs no devices.
    cluster = SINGLE if Path(output).exists() else _start_cluster(config, records, callbacks)

    def build(work: Path, folder: Path) -> Contents:
        training = PretrainingRecords(records, vocabulary_file=initial and initial / VOCABULARY_FILE)
        _check_fit(config, training)
        with cluster.scope():
            follow = report if cluster.is_first else _ignore
            return _build(config, records, training, initial, work, folder, follow, callbacks, cluster)

    def find_key(settings: Mapping[str, Any]) -> str:
        return pretraining_key(config, records, initial, settings.get(EARLIER, ()))

    def publish_result(build: Callable[[Path], Contents]) -> Path:
        return publish(output, "pretraining", find_key, build, resumable=True, scratch=CHECKPOINTS)

    return publish_together(cluster, output, build, publish_result)


def make_pretrainer(
    shape: ModelConfig, vocabulary_size: int, objective: str = MLM_NSP
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
        use_pooler=objective in SENTENCE_TASKS,
        **{name: value for name, value in sizes.items() if value is not None},
    )
    return BertPretrainer(backbone) if backbone.use_pooler else BertMaskedLM(backbone)


def compile_pretrainer(model: BertPretrainer | BertMaskedLM, config: PipelineConfig, cluster: Cluster = SINGLE) -> None:
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
    )
    sums = {name: token_loss(is_sum=True) for name in model.output} if settings.accumulate_batches > 1 else None
    losses = cluster.losses(model.output) or sums
    model.compile(optimizer=optimizer, loss=losses, auto_scale_loss=False)  # the guard scales it
    cluster.prepare(model)
    if max_skipped_steps:
        keep_metrics_finite(model)


def _start_cluster(config: PipelineConfig, records: Path, callbacks) -> Cluster:
    size = get_size(config.model.size) | config.model.model_dump(exclude_none=True)
    vocabulary_size = read_manifest(records).config["vocabulary_size"]
    cluster = start_cluster(config, vocabulary_size, {name: size[name] for name in ("num_heads", "intermediate_dim")})
    if callbacks and cluster.processes > 1:
        raise ValueError(
            f"Callbacks need a single process. Received: {len(callbacks)} in {cluster.processes} processes. "
            "Leave them out."
        )
    return cluster


def _ignore(line: Mapping[str, Any]) -> None:
    """Report nothing: another process does."""


def _build(
    config: PipelineConfig,
    records: Path,
    training,
    initial: Path | None,
    work: Path,
    folder: Path,
    report,
    callbacks,
    cluster: Cluster,
) -> Contents:
    held_out = PretrainingRecords(records, "held_out", verify=False)
    seed_everything(config.seed)
    with arithmetic(config.pretraining.precision):
        if initial is None:
            model = make_pretrainer(config.model, training.manifest.config["vocabulary_size"], training.objective)
        else:
            model = load_initial_model(initial, config.model, training.objective)
    compile_pretrainer(model, config, cluster)
    settings, chosen = config.pretraining, config.pretraining.publish == "best"
    identity = pretraining_identity(config, records, initial)
    steering = {name: getattr(settings, name) for name in STEERING}
    checkpoints = Checkpoints(work / CHECKPOINTS, identity, settings.keep_checkpoints, steering, cluster.is_first)
    checkpoints.find()  # the history of the run is known from here on
    best = BestCheckpoint(
        work / CHECKPOINTS / BEST,
        identity,
        lambda step: checkpoints.list_spans(("total_steps",), step),
        chosen,
        cluster.is_first,
    )
    metrics = _train(model, config, training, held_out, folder, checkpoints, best, report, callbacks, cluster)
    if not cluster.is_first:
        return Contents()
    (work / "metrics.json").write_text(json.dumps(metrics, indent=1), encoding="utf-8")
    cased = training.manifest.config["cased"]
    save_model_directory(model, work / "model", records / VOCABULARY_FILE, cased, card=write_card(config, metrics))
    facts = config.model_dump(mode="json", include=SETTINGS)
    earlier = checkpoints.list_earlier(STEERING if chosen else ("total_steps",), metrics["steps"])
    return Contents(facts | ({EARLIER: earlier} if earlier else {}), pretraining_inputs(records, initial))


def _train(
    model,
    config: PipelineConfig,
    training,
    held_out,
    folder: Path,
    checkpoints: Checkpoints,
    best: BestCheckpoint,
    report,
    callbacks,
    cluster: Cluster,
) -> dict[str, Any]:
    settings = config.pretraining
    share, parts = (cluster.rank, cluster.processes), 1 if cluster.computes_apart else settings.accumulate_batches
    scores: dict[str, float] = {}

    def evaluate(until_stopped=iter) -> dict[str, float]:
        batch_size = settings.batch_size // settings.accumulate_batches
        batches = until_stopped(ordered_batches(held_out, batch_size, settings.evaluate_instances, share))
        scores.update(score_pretraining(model, batches, SENTENCE_TASKS.get(training.objective), cluster))
        if settings.keep_best and scores:
            best.offer(model, model.optimizer.steps, scores["masked_lm_loss"])
        return {f"held_out_{name}": value for name, value in scores.items()}

    tokens_per_step = settings.batch_size * training.sequence_length
    flops = pretraining_flops(model.backbone, training.sequence_length, len(training[0]["masked_lm_ids"]))
    seconds = train(
        model,
        lambda step: pretraining_dataset(
            training, settings.batch_size, config.seed, step, settings.masking, parts, share
        ),
        Borders(
            settings.total_steps,
            settings.log_every_steps,
            settings.evaluate_every_steps,
            settings.checkpoint_every_steps,
        ),
        folder,
        checkpoints,
        evaluate,
        tokens_per_step,
        report,
        batches_per_step=settings.accumulate_batches,
        flops_per_step=settings.batch_size * flops.training,
        peak_flops=settings.peak_flops,
        callbacks=callbacks,
        tensorboard=settings.tensorboard,
        cluster=cluster,
    )
    last = (read_log(folder) or [{"step": settings.total_steps}])[-1]  # only the first process has the whole log
    steps = last["step"]
    cluster.wait()  # for the first process to have saved
    chosen = {"published_step": best.restore(model) or steps} if settings.publish == "best" else {}
    cluster.wait()
    # A kill may have come between the last checkpoint and the model directory, and a callback may end a run anywhere.
    if not scores or callbacks or chosen:
        evaluate()
    if not cluster.is_first:
        return {}
    tokens = tokens_per_step * steps
    return (
        scores
        | chosen
        | {name: last[name] for name in ("skipped_steps",) if name in last}
        | {
            "steps": steps,
            "tokens": tokens,
            "seconds": round(seconds, 1),
            "tokens_per_second": round(tokens / seconds),
            "parameters": model.count_params(),
        }
        | ({"devices": cluster.devices} if cluster.devices > 1 else {})
    )


def _check_fit(config: PipelineConfig, training: PretrainingRecords) -> None:
    if not len(training):
        raise ValueError("There must be records to train on. Received: none. Give the corpus more documents.")
    if training.sequence_length > config.model.max_positions:
        raise ValueError(
            f"Records must fit the model's {config.model.max_positions} positions. Received: records of "
            f"{training.sequence_length} tokens. Raise model.max_positions or rebuild the records."
        )


def write_card(config: PipelineConfig, metrics: Mapping[str, Any]) -> str:
    """Write the model card: what the model is and what was measured."""
    lines = [f"# {config.name}", "", f"A BERT of size `{config.model.size}`, pre-trained with keras-bert-flow.", ""]
    lines += ["| measure | value |", "|---|---|"]
    lines += [f"| {name.replace('_', ' ')} | {value:,.4g} |" for name, value in sorted(metrics.items())]
    return "\n".join(lines) + "\n"
