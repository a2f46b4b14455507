"""Shared by pre-training and distillation: train on records in any number of processes, and publish the model."""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras

from keras_bert_flow.command_time import stage_seconds
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.conversion.adapters import check_whole
from keras_bert_flow.conversion.model_card import Card
from keras_bert_flow.conversion.model_directory import save_model_directory
from keras_bert_flow.data.pretraining import ordered_batches, pretraining_dataset
from keras_bert_flow.data.pretraining_records import PretrainingRecords
from keras_bert_flow.distribution.cluster import SINGLE, Cluster
from keras_bert_flow.input_states import InputStates
from keras_bert_flow.models.with_head import ModelWithHead
from keras_bert_flow.records.checking import check_positions
from keras_bert_flow.records.publish import Contents, publish
from keras_bert_flow.stages.pretraining import INITIAL
from keras_bert_flow.stages.stage import Stage
from keras_bert_flow.text.masking import count_masks
from keras_bert_flow.text.objectives.objective import Objective
from keras_bert_flow.text.objectives.registry import find_objective
from keras_bert_flow.text.tokenizers.files import copy_tokenizer, find_tokenizer_file
from keras_bert_flow.text.vocabulary.vocab_file import VOCABULARY_FILE
from keras_bert_flow.training.loop.time_limit import TimeLimit
from keras_bert_flow.training.loop.tracker import Tracker
from keras_bert_flow.training.loop.train import Borders, train
from keras_bert_flow.training.precision import arithmetic, seed_everything
from keras_bert_flow.training.pretraining.card import describe_run
from keras_bert_flow.training.pretraining.initial_tokens import set_initial_tokens
from keras_bert_flow.training.pretraining.objective_fit import check_padding
from keras_bert_flow.training.pretraining.plateau import PlateauWatch, find_unigram_loss
from keras_bert_flow.training.pretraining.pretrainers import compile_pretrainer
from keras_bert_flow.training.pretraining.validation import score_pretraining
from keras_bert_flow.training.processes import check_same_run, join_cluster, publish_together
from keras_bert_flow.training.state.best_checkpoint import BestCheckpoint
from keras_bert_flow.training.state.checkpoints import Checkpoints
from keras_bert_flow.training.state.identity import STEERING
from keras_bert_flow.training.state.logs import read_log

_logger = logging.getLogger(__name__)

CHECKPOINTS, BEST = "checkpoints", "best"
EARLIER = "earlier"  # key in the manifest: other settings of earlier steps
Report = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True)
class Recipe:
    """Definition of one kind of training on records: pre-training or distillation.

    Attributes:
        config: the sections `model` and `pretraining`, and the seed are used.
        facts: names of the sections and settings to store in the manifest.
        source: a model directory with the same vocabulary, the initial model or the teacher; None: there is none.
        is_new: whether the weights of the model are new.
        objective: the training objective; None: that of the records.
        inputs: states of the records and the source from before they were digested.
        find_key: returns the content key, from the settings of earlier steps.
        find_inputs: returns the digests of the inputs.
        find_identity: returns the identity of the run; see `state.identity`.
        make_model: builds the model for given records.
        count_operations: returns the training FLOPs of one sequence, from the model, the sequence length and the number
            of predictions.
    """

    stage: Stage
    config: PipelineConfig
    facts: frozenset[str]
    source: Path | None
    is_new: bool
    objective: Objective | None
    inputs: InputStates
    find_key: Callable[[Sequence], str]
    find_inputs: Callable[[], dict[str, str]]
    find_identity: Callable[[], dict[str, Any]]
    make_model: Callable[[PretrainingRecords], ModelWithHead]
    count_operations: Callable[[ModelWithHead, int, int], int]


@dataclass(frozen=True)
class Run:
    """Context shared by the parts of a run.

    Attributes:
        training: records of the training part.
        work: folder of the files to publish and of the checkpoints; all processes see it.
        folder: for files that only the first process keeps: `work`, or a temporary folder in the other processes.
        report: called with every line of the log.
        cluster: the devices and processes.
    """

    recipe: Recipe
    records: Path
    training: PretrainingRecords
    held_out: PretrainingRecords
    work: Path
    folder: Path
    report: Report
    callbacks: Sequence[keras.callbacks.Callback]
    cluster: Cluster

    @property
    def config(self) -> PipelineConfig:
        return self.recipe.config

    @property
    def objective(self) -> Objective:
        return self.recipe.objective or find_objective(self.training.objective)


def publish_run(
    recipe: Recipe, records: Path, output: str | Path, report: Report, callbacks: Sequence[keras.callbacks.Callback]
) -> Path:
    """Train and publish a folder with `model/`, `log.jsonl` and `metrics.json`; return at once if it exists.

    A killed run resumes from its newest checkpoint, to bitwise the same weights. See `pretrain.pretrain`.
    """
    config, length = recipe.config, recipe.config.pretraining.sequence_length
    if recipe.source is not None:
        check_whole(recipe.source)
    recipe.find_key(())  # raises for invalid inputs before anything else is done
    cluster = SINGLE  # skips device set-up if the output exists
    if not Path(output).exists():
        described = PretrainingRecords(records, sequence_length=length)
        _check_fit(config, described)
        cluster = join_cluster(config, described.manifest.config["vocabulary_size"], callbacks)
        if config.pretraining.minutes is not None and cluster.processes > 1:
            raise ValueError(
                "`pretraining.minutes` must go with one process, as each measures its own speed. Received: "
                f"{cluster.processes} processes. Leave it out, and choose total_steps."
            )

    def build(work: Path, folder: Path) -> Contents:
        vocabulary = recipe.source and find_tokenizer_file(recipe.source)
        training = PretrainingRecords(records, vocabulary_file=vocabulary, sequence_length=length)
        held_out = PretrainingRecords(records, "held_out", verify=False, sequence_length=length)
        follow = report if cluster.is_first else _ignore
        return _build(Run(recipe, records, training, held_out, work, folder, follow, callbacks, cluster))

    def find_key(settings: Mapping[str, Any]) -> str:
        return recipe.find_key(settings.get(EARLIER, ()))

    def publish_result(build: Callable[[Path], Contents]) -> Path:
        return publish(
            output,
            recipe.stage.name,
            find_key,
            build,
            resumable=True,
            scratch=CHECKPOINTS,
            inputs=recipe.inputs,
            revision=recipe.stage.revision,
        )

    return publish_together(cluster, output, build, publish_result)


def _ignore(line: Mapping[str, Any]) -> None:
    """Report nothing; the first process does."""


def _build(run: Run) -> Contents:
    config, settings, cluster = run.config, run.config.pretraining, run.cluster
    identity = run.recipe.find_identity()
    check_same_run(cluster, identity | {"pretraining": settings.model_dump(mode="json")})
    seed_everything(config.seed)
    steering = {name: getattr(settings, name) for name in STEERING}
    folder, is_chosen = run.work / CHECKPOINTS, settings.publish == "best"
    inputs = run.recipe.inputs
    checkpoints = Checkpoints(folder, identity, settings.keep_checkpoints, steering, cluster.is_first, inputs)
    done, _ = checkpoints.find()  # the history of the run is known from here on
    with arithmetic(settings.precision), cluster.scope():
        model = run.recipe.make_model(run.training)
        if not done and run.recipe.is_new:
            set_initial_tokens(model, run.training, settings, config.seed)
            if settings.token_embeddings != "random" and cluster.is_first:
                _save_directory(run, model.find_published(), run.work / INITIAL, None)
    facts = config.model_dump(mode="json", include={*run.recipe.facts})
    best = BestCheckpoint(
        folder / BEST,
        identity,
        lambda step: checkpoints.list_spans(("total_steps",), step),
        is_chosen,
        cluster.is_first,
        inputs,
    )
    with cluster.scope(), _track(run, facts) as tracker:
        compile_pretrainer(model, config, cluster)
        metrics = _train(run, model, checkpoints, best, tracker)
        tracker.finish(metrics)
        inputs.check()  # in each process, which may see other disks
        if not cluster.is_first:
            return Contents()
        _save(run, model.find_published(), metrics | {"parameters": model.find_published().count_params()})
    earlier = checkpoints.list_earlier(STEERING if is_chosen else ("total_steps",), metrics["steps"])
    return Contents(facts | ({EARLIER: earlier} if earlier else {}), run.recipe.find_inputs())


def _save(run: Run, model: ModelWithHead, metrics: Mapping[str, Any]) -> None:
    (run.work / "metrics.json").write_text(json.dumps(metrics, indent=1), encoding="utf-8")
    card = describe_run(run.config, run.training.manifest, metrics)
    _save_directory(run, model, run.work / "model", card)


def _save_directory(run: Run, model: ModelWithHead, folder: Path, card: Card | None) -> None:
    cased, tokenizer = run.training.manifest.config["cased"], find_tokenizer_file(run.records)
    is_vocabulary = tokenizer.name == VOCABULARY_FILE
    if not is_vocabulary:
        folder.mkdir(exist_ok=True)
        copy_tokenizer(tokenizer, cased, folder)
    save_model_directory(model, folder, tokenizer if is_vocabulary else None, cased, card=card)


def _track(run: Run, facts: Mapping[str, Any]) -> Tracker:
    recipe, config = run.recipe, run.config
    loggers = config.loggers if run.cluster.is_first else ()
    key = recipe.find_key(()) if loggers else ""
    name = f"{config.name}/{recipe.stage.name}"
    return Tracker(loggers, run.folder, run.folder / CHECKPOINTS, name, recipe.stage.name, key, facts)


def _train(run: Run, model, checkpoints: Checkpoints, best: BestCheckpoint, tracker: Tracker) -> dict[str, Any]:
    settings, training, cluster = run.config.pretraining, run.training, run.cluster
    share, parts = (cluster.rank, cluster.processes), 1 if cluster.computes_apart else settings.accumulate_batches
    objective, scores = run.objective, {}

    def evaluate(until_stopped=iter) -> dict[str, float]:
        batch_size = settings.batch_size // settings.accumulate_batches
        batches = until_stopped(
            ordered_batches(run.held_out, batch_size, settings.evaluate_instances, share, objective)
        )
        scores.update(score_pretraining(model, batches, objective, cluster))
        if settings.keep_best and scores:
            best.offer(model, model.optimizer.steps, scores[f"{objective.main_score}_loss"])
        return {f"held_out_{name}": value for name, value in scores.items()}

    watch = PlateauWatch(lambda: find_unigram_loss(training), settings, read_log(run.folder))

    def report(line: Mapping[str, Any]) -> None:
        run.report(objective.name_parts(line))
        if cluster.is_first and (remark := watch.see(line)):
            _logger.warning("%s", remark)

    limit = None
    if settings.minutes is not None:
        limit = TimeLimit(stage_seconds(settings.minutes), settings.total_steps, model.optimizer.paced)
    tokens_per_step = settings.batch_size * training.sequence_length
    masks = len(training[0]["masked_lm_ids"])
    if settings.masked_fraction is not None:
        masks = count_masks(training.sequence_length, settings.masked_fraction)
    operations = run.recipe.count_operations(model, training.sequence_length, masks)
    seconds = train(
        model,
        lambda step: pretraining_dataset(
            training,
            settings.batch_size,
            run.config.seed,
            step,
            settings.masking,
            accumulate_batches=parts,
            share=share,
            bag_of_words=settings.bag_of_words > 0,
            masked_fraction=settings.masked_fraction,
            objective=objective,
        ),
        Borders(
            settings.total_steps,
            settings.log_every_steps,
            settings.evaluate_every_steps,
            settings.checkpoint_every_steps,
        ),
        run.folder,
        checkpoints,
        evaluate,
        tokens_per_step,
        report,
        batches_per_step=settings.accumulate_batches,
        flops_per_step=settings.batch_size * operations,
        peak_flops=settings.peak_flops,
        callbacks=run.callbacks,
        tensorboard=settings.tensorboard,
        on_begin=tracker.start,
        cluster=cluster,
        limit=limit,
    )
    last = (read_log(run.folder) or [{"step": settings.total_steps}])[-1]  # only the first process has the whole log
    steps = last["step"]
    if limit is not None and steps < settings.total_steps:
        _logger.warning(
            "`pretraining.minutes`: %s of %s steps fitted into %g minutes.",
            *(f"{steps:,}", f"{settings.total_steps:,}", settings.minutes),
        )
    cluster.wait()  # until the first process has saved
    chosen = {"published_step": best.restore(model) or steps} if settings.publish == "best" else {}
    cluster.wait()
    # The run may have been killed after the last checkpoint, and a callback may end it at any step.
    if not scores or run.callbacks or chosen:
        evaluate()
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
        }
        | ({"devices": cluster.devices} if cluster.devices > 1 else {})
    )


def _check_fit(config: PipelineConfig, training: PretrainingRecords) -> None:
    if not len(training):
        raise ValueError("There must be records to train on. Received: none. Give the corpus more documents.")
    check_positions(training.sequence_length, config.model.max_positions)
    check_padding(config.model, training.read_tokenizer())
