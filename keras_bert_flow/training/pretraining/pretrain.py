"""Pre-train a model from records to a model directory."""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import keras

from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.config.precision import resolve_precision
from keras_bert_flow.console.job_progress import stage_seconds
from keras_bert_flow.conversion.adapters import BASE, check_whole, name_base
from keras_bert_flow.conversion.model_card import Card, describe_machine
from keras_bert_flow.conversion.model_directory import save_model_directory
from keras_bert_flow.data.pretraining import ordered_batches, pretraining_dataset
from keras_bert_flow.data.pretraining_records import PretrainingRecords, RecordsFolder
from keras_bert_flow.distribution.cluster import SINGLE, Cluster
from keras_bert_flow.files.inputs import InputStates, hold
from keras_bert_flow.files.paths import check_local
from keras_bert_flow.models.sizes import count_flops
from keras_bert_flow.models.with_head import ModelWithHead
from keras_bert_flow.records.tfrecord import check_positions
from keras_bert_flow.results.manifest import Manifest, is_measurement
from keras_bert_flow.results.publishing import Contents, publish
from keras_bert_flow.results.stages.pretraining import INITIAL, PRETRAINING, pretraining_inputs, pretraining_key
from keras_bert_flow.results.stages.stage import Stage
from keras_bert_flow.stores.fetching import fetch
from keras_bert_flow.text.masking import count_masks
from keras_bert_flow.text.objectives.objective import Objective, find_objective
from keras_bert_flow.text.tokenizers.files import copy_tokenizer, find_tokenizer_file
from keras_bert_flow.text.vocabulary.vocab_file import VOCABULARY_FILE
from keras_bert_flow.training.loop.checkpoints import BestCheckpoint, Checkpoints
from keras_bert_flow.training.loop.identity import STEERING, pretraining_identity
from keras_bert_flow.training.loop.logs import read_log
from keras_bert_flow.training.loop.steps import TimeLimit
from keras_bert_flow.training.loop.tracker import Tracker
from keras_bert_flow.training.loop.train import Borders, train
from keras_bert_flow.training.precision import arithmetic, seed_everything
from keras_bert_flow.training.pretraining.fit import check_padding
from keras_bert_flow.training.pretraining.initial import load_initial_model, set_initial_tokens
from keras_bert_flow.training.pretraining.pretrainers import compile_pretrainer, make_pretrainer
from keras_bert_flow.training.pretraining.validation import PlateauWatch, find_unigram_loss, score_pretraining
from keras_bert_flow.training.processes import check_same_run, join_cluster, publish_together

# Model card of a pre-trained model: data, training recipe and held-out scores.

# Counter of the job that made the records → its title
COUNTERS = {
    "documents_train": "documents to train on",
    "documents_held_out": "documents held out",
    "sentences": "sentences",
    "tokens": "tokens",
    "instances_train": "instances to train on",
    "instances_held_out": "instances held out",
}
RECORDS = ("objective", "sequence_length", "masked_fraction", "mask_unit", "duplication", "cased", "seed")
RECIPE = ("optimizer", "learning_rate", "warmup_steps", "decay", "weight_decay", "batch_size", "masking", "precision")


def describe_run(config: PipelineConfig, records: Manifest, metrics: Mapping[str, Any]) -> Card:
    """Return the model card of a pre-trained model.

    Args:
        config: of the run.
        records: the manifest of the training records.
        metrics: content of `metrics.json`.
    """
    counters, settings = records.counters, config.pretraining.model_dump(mode="json")
    data = [[title, f"{counters[name]:,}"] for name, title in COUNTERS.items() if name in counters]
    data += [[name.replace("_", " "), str(records.config[name])] for name in RECORDS if name in records.config]
    recipe = [[name.replace("_", " "), str(settings[name])] for name in RECIPE] + [["seed", str(config.seed)]]
    if config.initial_model is not None:
        recipe.insert(0, ["began from", _name_model(config.initial_model)])
    scores = [
        [name.replace("_", " "), f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"]
        for name, value in sorted(metrics.items())
        if name != "parameters" and not is_measurement(name)
    ]
    sections = (
        ("Data", [*data, ["key of the records", records.key]]),
        ("Training", recipe),
        ("Held-out scores", scores),
        describe_machine(metrics["seconds"], metrics.get("devices", 1)),
    )
    return Card(config.name, sections)


def _name_model(initial_model: str) -> str:
    """Return the name of a model on the Hub; for a local model not its path, which is meaningless on a card."""
    base = name_base(initial_model)
    if Path(base[BASE] or "").is_absolute():
        return "another model"
    return f"{base[BASE]}" + (f", revision {base['revision']}" if base["revision"] else "")


# Shared by pre-training and distillation: train on records in any number of processes, and publish the model.

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
    records: RecordsFolder
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
    recipe: Recipe,
    records: RecordsFolder,
    output: str | Path,
    report: Report,
    callbacks: Sequence[keras.callbacks.Callback],
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
    cased, tokenizer = run.training.manifest.config["cased"], run.records.tokenizer_file
    is_vocabulary = tokenizer.name == VOCABULARY_FILE
    if not is_vocabulary:
        folder.mkdir(exist_ok=True)
        copy_tokenizer(tokenizer, cased, folder, run.records.files.read)
    vocabulary = tokenizer if is_vocabulary else None
    save_model_directory(model, folder, vocabulary, cased, card=card, read=run.records.files.read)


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


FACTS = frozenset({"name", "seed", "backend", "model", "pretraining"})


def pretrain(
    config: PipelineConfig,
    records: str | Path | RecordsFolder,
    output: str | Path,
    report: Report = print,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    initial_model: str | Path | None = None,
) -> Path:
    """Pre-train and publish a folder with `model/`, `log.jsonl` and `metrics.json`; return at once if it exists.

    A killed run resumes from its newest checkpoint, to bitwise the same weights.

    Args:
        config: its sections `model` and `pretraining`, and the seed are used; the objective is that of the records. Its
            section `distribution` selects the devices; see `distribution.starting`.
        records: output of `kbf records`, local or remote; see `stores.fetching.fetch`.
        output: the folder.
        report: called with every line of the log.
        callbacks: of Keras or your own. An epoch is the steps from one line of the log to the next; metrics are fetched
            from the device only at its end. See `training.loop.callbacks` for the calls and their arguments.
        initial_model: a model directory to continue from, ours or Hugging Face's, with the configured shape and the
            vocabulary of the records. The optimizer, its schedule, and heads that the directory lacks are new.
    Raises:
        FileNotFoundError: a file of the records, or of the initial model, is missing.
        ValueError: the records are damaged or do not fit the model, the initial model does not fit either, a checkpoint
            belongs to another run, or an input changes meanwhile.
        Interrupted: on SIGTERM or SIGINT; run again to resume.
    """
    check_local(output)
    config = resolve_precision(config, keras.backend.backend())
    opened, initial = RecordsFolder.of(records), None if initial_model is None else fetch(initial_model)
    folder, files = opened.folder, opened.files
    recipe = Recipe(
        PRETRAINING,
        config,
        FACTS,
        source=initial,
        is_new=initial is None,
        objective=None,
        inputs=hold(folder, *([] if initial is None else [initial])),
        find_key=partial(pretraining_key, config, folder, initial, files=files),
        find_inputs=partial(pretraining_inputs, folder, initial, files),
        find_identity=partial(pretraining_identity, config, folder, initial, files),
        make_model=partial(_make_model, config, initial),
        count_operations=partial(_count_operations, config),
    )
    return publish_run(recipe, opened, output, report, callbacks)


def _make_model(config: PipelineConfig, initial_model: Path | None, training: PretrainingRecords) -> ModelWithHead:
    settings, objective = config.pretraining, training.objective
    if initial_model is not None:
        return load_initial_model(initial_model, config.model, objective, settings)
    return make_pretrainer(config.model, training.manifest.config["vocabulary_size"], objective, settings)


def _count_operations(config: PipelineConfig, model: ModelWithHead, length: int, masks: int) -> int:
    """Count the training FLOPs of one sequence; see `models.flops`."""
    shape, settings = model.backbone.shape, config.pretraining
    flops = count_flops(
        shape,
        length,
        masks,
        use_pooler=model.backbone.use_pooler,
        bag_of_words=settings.bag_of_words > 0,
        generator=getattr(model, "generator_shape", None),
    )
    return flops.training
