"""Pre-train a model from records to a model directory."""

import json
import logging
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras

from keras_bert_flow.backends.runtime import arithmetic, seed_everything
from keras_bert_flow.config.pipeline import PipelineConfig, resolve_precision
from keras_bert_flow.config.pretraining import PretrainingConfig
from keras_bert_flow.console.interrupts import stage_seconds
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
from keras_bert_flow.results.publishing import Contents, Work
from keras_bert_flow.results.stages.keys import Stage
from keras_bert_flow.results.stages.models import AT_WORDS, INITIAL, PRETRAINING, pretraining_inputs, pretraining_key
from keras_bert_flow.stores.fetching import fetch
from keras_bert_flow.text.masking import count_masks
from keras_bert_flow.text.objectives.objective import Objective, find_objective
from keras_bert_flow.text.tokenizers.files import copy_tokenizer, find_tokenizer_file
from keras_bert_flow.text.vocabulary import VOCABULARY_FILE
from keras_bert_flow.training.fit import check_padding
from keras_bert_flow.training.loop.checkpoints import BestCheckpoint, Checkpoints
from keras_bert_flow.training.loop.identity import STEERING, list_earlier, list_spans, pretraining_identity
from keras_bert_flow.training.loop.logs import Tracker, read_log
from keras_bert_flow.training.loop.steps import TimeLimit
from keras_bert_flow.training.loop.train import Intervals, StepSize, train
from keras_bert_flow.training.pretraining.pretrainers import (
    compile_pretrainer,
    load_initial_model,
    make_pretrainer,
    set_initial_tokens,
)
from keras_bert_flow.training.pretraining.validation import PlateauWatch, find_unigram_loss, score_pretraining
from keras_bert_flow.training.processes import check_same_run, join_cluster, published_together

CHECKPOINTS, BEST = "checkpoints", "best"
EARLIER = "earlier"  # key in the manifest: other settings of earlier steps
SECTIONS = {"name", "seed", "backend", "model", "pretraining"}  # in the manifest
Report = Callable[[Mapping[str, Any]], None]
_logger = logging.getLogger(__name__)


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
            from the device only at its end. See `training.loop.train.UserCallbacks` for the calls and their arguments.
        initial_model: a model directory to continue from, ours or Hugging Face's, with the configured shape and the
            vocabulary of the records. The optimizer, its schedule, and heads that the directory lacks are new.
    Raises:
        FileNotFoundError: a file of the records, or of the initial model, is missing.
        ValueError: the records are damaged or do not fit the model, the initial model does not fit either, a checkpoint
            belongs to another run, or an input changes meanwhile.
        Interrupted: on SIGTERM or SIGINT; run again to resume.
    Example:
        >>> config, log = kbf.load_config("run.yaml"), []
        >>> folder = kbf.pretrain(config, "records", "out/pretrained", report=log.append)
        >>> (folder / "model" / "config.json").is_file()
        True
        >>> log[-1]["step"]
        4
    """
    check_local(output)
    config = resolve_precision(config, keras.backend.backend())
    settings = config.pretraining
    opened, initial = RecordsFolder.of(records), None if initial_model is None else fetch(initial_model)
    folder, files = opened.folder, opened.files
    inputs = hold(folder, *([] if initial is None else [initial]))
    if initial is not None:
        check_whole(initial)
    key = pretraining_key(
        config, folder, initial, files=files
    )  # raises for invalid inputs before anything else is done
    cluster = start_processes(config, opened, output, callbacks)

    with published_together(
        cluster,
        output,
        PRETRAINING,
        lambda made: pretraining_key(config, folder, initial, made.get(EARLIER, ()), files),
        inputs,
        scratch=CHECKPOINTS,
    ) as work:
        if work is None:
            return Path(output)
        data = open_records(opened, config, tokenizer_of=initial)
        identity = pretraining_identity(config, folder, initial, files)
        check_same_run(cluster, identity | {"pretraining": settings.model_dump(mode="json")})
        seed_everything(config.seed)
        checkpoints, best, steps_done = open_checkpoints(work, config, identity, inputs, cluster)
        with arithmetic(settings.precision), cluster.scope():
            if initial is not None:
                model = load_initial_model(initial, config.model, data.training.objective, settings)
            else:
                vocabulary_size = data.training.manifest.config["vocabulary_size"]
                model = make_pretrainer(config.model, vocabulary_size, data.training.objective, settings)
            if initial is None and not steps_done:
                set_initial_tokens(model, data.training, settings, config.seed)
                if settings.token_embeddings != "random" and cluster.is_first:
                    save_model(model, data, work.folder / INITIAL)
        facts = config.model_dump(mode="json", include=SECTIONS)
        with cluster.scope(), track(PRETRAINING, config, key, facts, work, cluster) as tracker:
            compile_pretrainer(model, config, cluster)
            flops = count_flops(
                model.backbone.shape,
                data.training.sequence_length,
                data.count_masks(),
                use_pooler=model.backbone.use_pooler,
                bag_of_words=settings.bag_of_words > 0,
                generator=getattr(model, "generator_shape", None),
                span_boundary=data.objective.has_spans,
            ).training
            metrics = train_on_records(
                model, config, data, work, checkpoints, best, flops, report, callbacks, tracker.start, cluster
            )
            tracker.metrics = metrics
            inputs.check()  # in each process, which may see other disks
            if cluster.is_first:
                save_result(model, config, data, metrics, work.folder)
        facts |= find_earlier(checkpoints, settings, metrics["steps"])
        work.contents = Contents(facts, pretraining_inputs(folder, initial, files))
    return Path(output)


# The steps of pre-training and distillation.


def start_processes(
    config: PipelineConfig, records: RecordsFolder, output: str | Path, callbacks: Sequence[keras.callbacks.Callback]
) -> Cluster:
    """Check the records, then set up and return the devices and processes; a single device if the output exists.

    Raises:
        LostProcess, ValueError: see `join_cluster`; or the records or the settings do not fit.
    """
    if Path(output).exists():
        return SINGLE
    settings = config.pretraining
    training = PretrainingRecords(records, sequence_length=settings.sequence_length)
    if not len(training):
        raise ValueError("There must be records to train on. Received: none. Give the corpus more documents.")
    check_positions(training.sequence_length, config.model.max_positions)
    check_padding(config.model, training.read_tokenizer())
    cluster = join_cluster(config, training.manifest.config["vocabulary_size"], callbacks)
    if settings.minutes is not None and cluster.processes > 1:
        raise ValueError(
            "`pretraining.minutes` must go with one process, as each measures its own speed. Received: "
            f"{cluster.processes} processes. Leave it out, and choose total_steps."
        )
    return cluster


@dataclass(frozen=True)
class TrainingData:
    """The records of a run and its objective.

    Attributes:
        folder: the folder of the records.
        masked_fraction: the largest of dynamic masks; None: that of the records.
    """

    folder: RecordsFolder
    training: PretrainingRecords
    held_out: PretrainingRecords
    objective: Objective
    masked_fraction: float | None

    def count_masks(self) -> int:
        """Return the number of predictions per sequence."""
        if self.masked_fraction is not None:
            return count_masks(self.training.sequence_length, self.masked_fraction)
        return len(self.training[0]["masked_lm_ids"])


def open_records(
    records: RecordsFolder, config: PipelineConfig, tokenizer_of: Path | None, objective: Objective | None = None
) -> TrainingData:
    """Open the records of a run.

    Args:
        records: output of `kbf records`.
        tokenizer_of: a model directory that must have the vocabulary of the records.
        objective: of the training. Default: that of the records.
    Raises:
        FileNotFoundError, ValueError: the records are damaged, or the vocabulary is another one.
    """
    length = config.pretraining.sequence_length
    vocabulary = tokenizer_of and find_tokenizer_file(tokenizer_of)
    training = PretrainingRecords(records, vocabulary_file=vocabulary, sequence_length=length)
    held_out = PretrainingRecords(records, "held_out", verify=False, sequence_length=length)
    objective = objective or find_objective(training.objective)
    return TrainingData(records, training, held_out, objective, config.pretraining.most_masked)


def open_checkpoints(
    work: Work, config: PipelineConfig, identity: Mapping[str, Any], inputs: InputStates, cluster: Cluster
) -> tuple[Checkpoints, BestCheckpoint, int]:
    """Return the newest checkpoints and the best one of a run, and the number of steps already done."""
    settings, folder, is_writer = config.pretraining, work.folder / CHECKPOINTS, cluster.is_first
    steering = {name: getattr(settings, name) for name in STEERING}
    checkpoints = Checkpoints(folder, identity, settings.keep_checkpoints, steering, is_writer, inputs)
    steps_done, _ = checkpoints.find()  # the history of the settings is known from here on
    best = BestCheckpoint(
        folder / BEST,
        identity,
        lambda step: list_spans(checkpoints.history, checkpoints.settings, ("total_steps",), step),
        settings.publish == "best",
        is_writer,
        inputs,
    )
    return checkpoints, best, steps_done


def track(
    stage: Stage, config: PipelineConfig, key: str, facts: Mapping[str, Any], work: Work, cluster: Cluster
) -> Tracker:
    """Return the loggers of a run; only the first process has any."""
    loggers = config.loggers if cluster.is_first else ()
    folder = work.log_folder
    return Tracker(loggers, folder, folder / CHECKPOINTS, f"{config.name}/{stage.name}", stage.name, key, facts)


def train_on_records(
    model: ModelWithHead,
    config: PipelineConfig,
    data: TrainingData,
    work: Work,
    checkpoints: Checkpoints,
    best: BestCheckpoint,
    flops: int,
    report: Report,
    callbacks: Sequence[keras.callbacks.Callback],
    on_begin: Callable[[], None],
    cluster: Cluster,
) -> dict[str, Any]:
    """Train a compiled model to the last step, leave it in the state to publish, and return its metrics.

    Args:
        flops: of the training on one sequence.
        report: called with every line of the log, in the first process.
        callbacks, on_begin: see `train`.
    """
    settings, training = config.pretraining, data.training
    share, parts = (cluster.rank, cluster.processes), 1 if cluster.computes_apart else settings.accumulate_batches
    objective, scores, end = data.objective, {}, settings.masked_fraction_end

    def evaluate(until_stopped=iter) -> dict[str, float]:
        batch_size = settings.batch_size // settings.accumulate_batches
        batches = until_stopped(
            ordered_batches(data.held_out, batch_size, settings.evaluate_instances, share, objective)
        )
        scores.update(score_pretraining(model, batches, objective, cluster))
        if settings.keep_best and scores:
            best.offer(model, model.optimizer.steps, scores[f"{objective.main_score}_loss"])
        return {f"held_out_{name}": value for name, value in scores.items()}

    watch = PlateauWatch(lambda: find_unigram_loss(training), settings, read_log(work.log_folder), objective.first_step)

    def report_line(line: Mapping[str, Any]) -> None:
        if cluster.is_first:
            report(objective.name_parts(line))
            if "mlm" in objective.scores and (remark := watch.see(line)):
                _logger.warning("%s", remark)

    limit = None
    if settings.minutes is not None:
        limit = TimeLimit(stage_seconds(settings.minutes), settings.total_steps, model.optimizer.paced)
    at_words = find_steps(settings, training)

    def save(step: int) -> None:
        for number in at_words[step] if cluster.is_first else ():
            folder = work.folder / AT_WORDS / str(number)
            shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed after it
            folder.parent.mkdir(exist_ok=True)
            save_model(model, data, folder)

    step_size = StepSize(
        settings.batch_size * training.sequence_length,
        settings.accumulate_batches,
        settings.batch_size * flops,
        settings.peak_flops,
    )
    seconds = train(
        model,
        lambda step: pretraining_dataset(
            training,
            settings.batch_size,
            config.seed,
            step,
            settings.masking,
            accumulate_batches=parts,
            share=share,
            bag_of_words=settings.bag_of_words > 0,
            masked_fraction=settings.masked_fraction,
            objective=objective,
            masked_fraction_end=None if end is None else (end, settings.total_steps),
            masked_fraction_least=settings.masked_fraction_least,
        ),
        Intervals(
            settings.total_steps,
            settings.log_every_steps,
            settings.evaluate_every_steps,
            settings.checkpoint_every_steps,
            frozenset(at_words),
        ),
        work.log_folder,
        checkpoints,
        evaluate,
        step_size,
        report_line,
        callbacks=callbacks,
        tensorboard=settings.tensorboard,
        on_begin=on_begin,
        cluster=cluster,
        limit=limit,
        save=save,
    )
    # Only the first process has the whole log.
    last = (read_log(work.log_folder) or [{"step": settings.total_steps}])[-1]
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
    if not scores or callbacks or chosen:
        evaluate()
    tokens = step_size.tokens * steps
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


def find_steps(settings: PretrainingConfig, training: PretrainingRecords) -> dict[int, list[int]]:
    """Return the steps at which a model is saved on the way: step → the numbers of words that it reaches."""
    steps: dict[int, list[int]] = {}
    if not settings.save_at_words:
        return steps
    words = settings.batch_size * training.mean_words  # of a step
    for number in settings.save_at_words:
        steps.setdefault(max(1, math.ceil(number / words)), []).append(number)
    if late := [number for step in steps if step > settings.total_steps for number in steps[step]]:
        read = words * settings.total_steps
        _logger.warning("`save_at_words`: the last step is after %s words, before %s.", f"{read:,.0f}", late)
    return steps


def find_earlier(checkpoints: Checkpoints, settings: PretrainingConfig, steps: int) -> dict[str, Any]:
    """Return the entry of the manifest for other settings of earlier steps; empty if they never changed."""
    names = STEERING if settings.publish == "best" else ("total_steps",)
    earlier = list_earlier(checkpoints.history, checkpoints.settings, names, steps)
    return {EARLIER: earlier} if earlier else {}


def save_result(
    model: ModelWithHead, config: PipelineConfig, data: TrainingData, metrics: Mapping[str, Any], folder: Path
) -> None:
    """Write `metrics.json` and the model directory of a result."""
    metrics = {**metrics, "parameters": model.find_published().count_params()}
    (folder / "metrics.json").write_text(json.dumps(metrics, indent=1), encoding="utf-8")
    save_model(model, data, folder / "model", describe_run(config, data.training.manifest, metrics))


def save_model(model: ModelWithHead, data: TrainingData, folder: Path, card: Card | None = None) -> None:
    """Write a model directory with the tokenizer of the records."""
    cased, read = data.training.manifest.config["cased"], data.folder.files.read
    tokenizer = find_tokenizer_file(data.folder.folder)
    is_vocabulary = tokenizer.name == VOCABULARY_FILE
    if not is_vocabulary:
        folder.mkdir(exist_ok=True)
        copy_tokenizer(tokenizer, cased, folder, read)
    vocabulary = tokenizer if is_vocabulary else None
    save_model_directory(model.find_published(), folder, vocabulary, cased, card=card, read=read)


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
        base = name_base(config.initial_model)
        name = f"{base[BASE]}" + (f", revision {base['revision']}" if base["revision"] else "")
        # The path of a local model is meaningless on a card.
        recipe.insert(0, ["began from", "another model" if Path(base[BASE] or "").is_absolute() else name])
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
