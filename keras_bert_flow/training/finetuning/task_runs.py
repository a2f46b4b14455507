"""Fine-tuning runs on a task, each in its own folder: batches in parts, early stopping, and model cards."""

import json
import logging
import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import keras

from keras_bert_flow.backends.runtime import is_on_processor, read_peak_bytes, seed_everything
from keras_bert_flow.backends.values import read_variable
from keras_bert_flow.config.finetuning import ADAPTER
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.conversion.model_card import Card, describe_machine
from keras_bert_flow.conversion.model_directory import load_for_finetuning, save_model_directory
from keras_bert_flow.data.tasks import ONLY_OUTPUT, TaskBatches, predict_features, read_batches
from keras_bert_flow.files.documents import read_json_object
from keras_bert_flow.models.with_head import COMPILES_SHAPES
from keras_bert_flow.results.artifacts import write_atomically
from keras_bert_flow.results.stages.tasks import FINETUNING
from keras_bert_flow.tasks.core.calibration import Calibration, calibrate
from keras_bert_flow.tasks.core.task import Features
from keras_bert_flow.tasks.core.texts import describe_cut
from keras_bert_flow.text.tokenizers.tokenizer import Tokenizer
from keras_bert_flow.text.vocabulary import VOCABULARY_FILE
from keras_bert_flow.training.finetuning.starts import LinearProbe, choose_trained_part, find_units
from keras_bert_flow.training.finetuning.task_data import TaskData, find_label_words
from keras_bert_flow.training.finetuning.teaching import LAYERS, load_teacher, match_layers, take_predictions
from keras_bert_flow.training.loop.checkpoints import BestCheckpoint, Checkpoints
from keras_bert_flow.training.loop.identity import finetuning_identity, list_changes
from keras_bert_flow.training.loop.logs import Tracker, read_log
from keras_bert_flow.training.loop.steps import TimeLimit
from keras_bert_flow.training.loop.train import Intervals, StepSize, train
from keras_bert_flow.training.optimizers.adam import find_rate_factors, make_guarded_optimizer
from keras_bert_flow.training.optimizers.guard import NotFiniteError
from keras_bert_flow.training.optimizers.schedules import PacedSteps, WarmupDecay

PRETRAINED, RANDOM = "pretrained", "random"
RUN_FILE, MODEL = "run.json", "model"
CHECKPOINTS, BEST = "checkpoints", "best"
LOGS_A_RUN = 20
LEAST_STEPS = 25  # of a run within `finetuning.minutes`, or an epoch if that is less
ADVICE = "Lower finetuning.learning_rate, or look for damaged input."
FLOAT16_ADVICE = f"{ADVICE} finetuning.precision=mixed_bfloat16 has the range of float32."
_logger = logging.getLogger(__name__)


class TaskRuns:
    """Runs that differ only in start and seed, with one classifier that is compiled once.

    Args:
        config: its sections `task` and `finetuning` are used.
        model: the model directory to start from.
        tokenizer: of that directory.
        data: of the task, encoded with the tokenizer.
        report: called with every line of a log.
        callbacks: see `finetune`.
        key: content key of the result, for loggers.
        order: the folders of all runs of the stage; a reported line then has the place of its run among them.

    Attributes:
        identity: see `finetuning_identity`.
    """

    def __init__(
        self,
        config: PipelineConfig,
        model: Path,
        tokenizer: Tokenizer,
        data: TaskData,
        report: Callable[[Mapping[str, Any]], None],
        callbacks: Sequence[keras.callbacks.Callback],
        key: str = "",
        order: Sequence[Path] = (),
    ):
        self._units = find_units(data.task.kind, data.train)
        if self._units is not None:
            train, dev = map(self._units.standardise, (data.train, data.dev))
            data = replace(data, train=train, dev=dev)
        self._parts = choose_parts(config, data.train)
        self._settings = config.finetuning.model_copy(update={"accumulate_batches": self._parts})
        self._config, self._model = config.model_copy(update={"finetuning": self._settings}), model
        self._tokenizer, self._data, self._report, self._callbacks = tokenizer, data, report, callbacks
        self.identity = finetuning_identity(self._config, model)
        self._field = f"dev_{data.task.main_metric}"
        self._key, self._order = key, tuple(order)
        self._classifier: Any = None
        self._teacher: Any = None
        self._taught = data.train  # with the predictions of the teacher, if any, once it is loaded
        self._probe: LinearProbe | None = None

    def finish(
        self,
        folder: Path,
        start: str,
        seed: int,
        may_fail: bool = False,
        prefix: str = "",
        seconds: float | None = None,
    ) -> dict[str, Any]:
        """Train a run, or resume it if it was killed, and write `model/`, `log.jsonl` and `run.json` to a folder.

        Args:
            may_fail: whether a run that meets NaN or infinity counts as finished, without a model and with the message
                in `failure`.
            seconds: how long it may take from now on, with `finetuning.minutes`.
            prefix: of the run name in reported lines; the name ends with those of the folder's parent and the folder.
        Returns:
            The content of `run.json`: start, seed, seconds, score (the main metric of the model on the dev table),
            trained_parameters, parameters, peak_bytes (of the process by the end of the run) and identity; of a
            regression on standardised numbers also their `mean` and `deviation`, as `label_units`; if asked for,
            `calibration`, the fields of `Calibration`; if `seconds` allowed fewer steps than all, `shortened`, both.
        """
        run = {"start": start, "seed": seed}
        ends_at = None if seconds is None else time.monotonic() + seconds
        if not self._is_finished(folder):
            if self._settings.teacher is not None and self._teacher is None:  # before this run is seeded
                self._teacher = load_teacher(Path(self._settings.teacher), self._data.task)
                self._taught = take_predictions(self._data.train, self._teacher, self._settings.max_widths)
            is_head_new = self._take_first_state(start, seed)
            batches = make_batches(self._config, self._taught, seed, self._parts)
            self._compile(self._settings.epochs * batches.steps_per_epoch)
            folder.mkdir(parents=True, exist_ok=True)
            try:
                name = prefix + str(folder.relative_to(folder.parents[1]))
                config, stage, state = self._config, FINETUNING.name, folder / CHECKPOINTS
                settings = config.model_dump(mode="json", include={"task", "finetuning", "backend"}) | run
                place = f"{config.name}/{stage}/{name}"
                with Tracker(config.loggers, folder, state, place, stage, self._key, settings) as tracker:
                    facts = self._train(folder, run, batches, is_head_new, name, tracker.start, ends_at)
                    tracker.metrics = facts
                run |= facts
                self._save(folder / MODEL, run)
            except NotFiniteError as error:
                if not may_fail:
                    raise
                run |= {"seconds": None, "score": None, "failure": str(error)}
            self._data.inputs.check()
            write_atomically(folder / RUN_FILE, json.dumps(run | {"identity": self.identity}).encode())
        for name in (CHECKPOINTS, BEST, f"{LAYERS}/{CHECKPOINTS}"):  # also if a previous process was killed before this
            shutil.rmtree(folder / name, ignore_errors=True)
        return read_json_object(folder / RUN_FILE)

    def _save(self, folder: Path, run: Mapping[str, Any]) -> None:
        length = self._settings.sequence_length
        if self._units is not None:
            self._units.put_into_head(self._classifier)
        folder.mkdir(parents=True, exist_ok=True)
        self._tokenizer.write(folder)
        file = folder / VOCABULARY_FILE
        vocabulary = file if file.is_file() else None  # else a `tokenizer.json`
        card = describe_run(self._config, self._data, run)
        options = {"card": card, "max_tokens": length}
        if self._settings.lora_output == ADAPTER:
            options["adapter_of"] = self._model
        save_model_directory(self._classifier, folder, vocabulary, self._tokenizer.cased, **options)
        self._data.task.save(folder, length)

    def _is_finished(self, folder: Path) -> bool:
        if not (folder / RUN_FILE).is_file():
            return False
        changes = list_changes(read_json_object(folder / RUN_FILE)["identity"], self.identity)
        if changes:
            raise ValueError(
                f"A run must go on as it began. Received: {folder} with another {changes}. "
                "Undo the change, or choose another output folder."
            )
        return True

    def _take_first_state(self, start: str, seed: int) -> bool:
        """Load the classifier, or reset the existing one to its initial state; return whether its head is new."""
        seed_everything(seed)
        rates = dict.fromkeys(("dropout_rate", "attention_dropout_rate"), self._settings.dropout_rate)
        task = self._data.task
        options = rates | {"new_head": self._settings.new_head} | task.model_options
        if self._settings.pooling is not None:
            options["pooling"] = self._settings.pooling
        fresh, is_head_new = load_for_finetuning(task.kind, self._model, labels=task.labels, **options)
        if start == RANDOM:
            fresh = type(fresh).from_config(fresh.get_config())
        if self._units is not None and start == PRETRAINED and not is_head_new:
            self._units.take_from_head(fresh)
        rate = self._settings.head_dropout_rate
        if rate is None and self._settings.head_start == "probe":
            rate = 0.0
        dropout = next((layer for layer in fresh.layers if layer.name == "classifier_dropout"), None)
        if rate is not None and dropout is not None:  # its seed stays, whatever the rate
            dropout.rate = fresh.dropout_rate = rate
        choose_trained_part(fresh, self._settings)
        if self._classifier is None:
            self._classifier = fresh
        else:
            for variable, first in zip(self._classifier.variables, fresh.variables, strict=True):
                variable.assign(first)
        return is_head_new or start == RANDOM

    def _train(
        self,
        folder: Path,
        run: Mapping[str, Any],
        batches: TaskBatches,
        is_head_new: bool,
        name: str,
        on_begin: Callable[[], None],
        ends_at: float | None,
    ) -> dict[str, Any]:
        """Train the run, leave the classifier in the state to publish, and return its entries of `run.json`."""
        settings, model, identity = self._settings, self._classifier, self.identity | dict(run)
        total_steps = settings.epochs * batches.steps_per_epoch
        is_chosen = settings.publish == "best"
        checkpoints = Checkpoints(folder / CHECKPOINTS, identity, keep=1, inputs=self._data.inputs)
        if settings.head_start == "probe" and is_head_new and not checkpoints.find()[0]:  # else it is already fitted
            if self._probe is None:
                words = find_label_words(settings.label_words, self._data.task.labels, self._tokenizer)
                self._probe = LinearProbe(model, self._data.task.kind, words)
            self._probe.start_head(self._data.train, settings.max_widths, run["seed"])
        about: dict[str, Any] = {"run": name, "total_steps": total_steps}
        if folder in self._order:
            about |= {"run_number": self._order.index(folder) + 1, "run_count": len(self._order)}
        if settings.layer_epochs and not checkpoints.find()[0]:  # else the encoder has begun to learn predictions
            match_layers(
                model.backbone,
                self._teacher.backbone,
                self._data.train,
                settings,
                lambda features: make_batches(self._config, features, run["seed"], self._parts),
                lambda pupil, steps: make_guarded_optimizer(**self._describe_optimizer(pupil, steps)),
                folder / LAYERS,
                run["seed"],
                identity,
                self._data.inputs,
                lambda line: self._report(about | {"run": f"{name}/{LAYERS}"} | dict(line)),
                self._callbacks,
                LOGS_A_RUN,
            )
        best = BestCheckpoint(folder / BEST, identity, is_needed=is_chosen, inputs=self._data.inputs)
        callbacks = self._callbacks
        if settings.patience_epochs is not None:
            loss = None if run["start"] == PRETRAINED else "dev_loss"
            warmup = math.ceil(settings.warmup_fraction * settings.epochs)
            callbacks = (*callbacks, StopWithoutGain(folder, self._field, settings.patience_epochs, loss, warmup))

        def evaluate(until_stopped) -> dict[str, float]:
            scores = self._score(until_stopped)
            if is_chosen:
                best.offer(model, model.optimizer.steps, -scores[self._field])
            return scores

        limit = None
        if ends_at is not None:
            # Fewer steps teach nothing, and their scores would be those of no model.
            limit = TimeLimit(
                ends_at - time.monotonic(),
                total_steps,
                model.optimizer.paced,
                least_steps=min(LEAST_STEPS, batches.steps_per_epoch),
                final_evaluations=1 + bool(settings.calibrate),
            )
        seconds = train(
            model,
            lambda step: read_batches(batches, step),
            Intervals(total_steps, max(1, total_steps // LOGS_A_RUN), batches.steps_per_epoch, batches.steps_per_epoch),
            folder,
            checkpoints,
            evaluate,
            StepSize(batches.mean_positions, self._parts),
            lambda line: self._report(about | dict(line)),
            callbacks=callbacks,
            on_begin=on_begin,
            limit=limit,
        )
        if is_chosen:
            best.restore(model)
        parts = {"trained_parameters": model.trainable_variables, "parameters": model.weights}  # LoRA included
        facts: dict[str, Any] = {name: sum(math.prod(weight.shape) for weight in part) for name, part in parts.items()}
        facts |= {"peak_bytes": read_peak_bytes()}
        facts |= {"remarks": list(self._data.remarks)} if self._data.remarks else {}
        if limit is not None and limit.last_step < total_steps:
            facts |= {"shortened": [limit.last_step, total_steps]}
            steps = f"{limit.last_step:,} of {total_steps:,}"
            _logger.warning("%s: `finetuning.minutes` left time for %s steps.", name, steps)
        facts |= {"label_units": asdict(self._units)} if self._units is not None else {}
        lines = read_log(folder)
        scores = [line[self._field] for line in (lines if is_chosen else lines[-1:]) if self._field in line]
        score = max(scores) if scores else self._score()[self._field]  # none if a callback ended the run before one
        if settings.calibrate:
            found, calibrated = self._calibrate()
            score = score if calibrated is None else calibrated
            facts |= {"calibration": asdict(found)}
        return {"seconds": round(seconds, 1), "score": score} | facts

    def _score(self, follow: Callable = iter) -> dict[str, float]:
        data = self._data
        outputs = predict_features(self._classifier, data.dev, self._settings.max_widths, follow=follow)
        loss = {"dev_loss": data.task.measure_loss(outputs, data.dev)}
        if self._units is not None:
            outputs = self._units.restore(outputs)
        return loss | {f"dev_{name}": score for name, score in self._score_outputs(outputs).items()}

    def _score_outputs(self, outputs: Mapping[str, Any]) -> Mapping[str, float]:
        data = self._data
        return data.task.score(data.dev_examples, data.task.decode(outputs, data.dev, data.dev_examples))

    def _calibrate(self) -> tuple[Calibration, float | None]:
        """Calibrate the head on the dev table; return also the score there if answers may have changed."""
        data, with_biases = self._data, self._settings.calibrate is not True
        outputs = predict_features(self._classifier, data.dev, self._settings.max_widths)
        found = calibrate(outputs[ONLY_OUTPUT], data.dev.labels[ONLY_OUTPUT], with_biases)
        layer = self._classifier.get_layer("classifier")
        layer.kernel.assign(layer.kernel / found.temperature)
        layer.bias.assign(found.apply(read_variable(layer.bias)))
        if not with_biases:
            return found, None
        calibrated = {**outputs, ONLY_OUTPUT: found.apply(outputs[ONLY_OUTPUT])}
        return found, self._score_outputs(calibrated)[data.task.main_metric]

    def _describe_optimizer(self, model: Any, total_steps: int) -> dict[str, Any]:
        """Return the arguments of `make_guarded_optimizer` for a model with an encoder, and a number of steps."""
        settings = self._settings
        warmup_steps = int(settings.warmup_fraction * total_steps)
        schedule = WarmupDecay(settings.learning_rate, warmup_steps, total_steps, settings.decay, settings.decay_from)
        return {
            "kind": settings.optimizer,
            "learning_rate": schedule if settings.minutes is None else PacedSteps(schedule),
            "weight_decay": settings.weight_decay,
            "clip_norm": settings.clip_norm,
            "rate_factors": find_rate_factors(model.backbone, settings.layer_decay),
            "epsilon": settings.epsilon,
            "accumulate_batches": settings.accumulate_batches,
            "precision": settings.precision,
            "advice": FLOAT16_ADVICE if settings.precision == "mixed_float16" else ADVICE,
        }

    def _compile(self, total_steps: int) -> None:
        """Compile the classifier, or reset its optimizer if it is already compiled."""
        if self._classifier.compiled:
            self._classifier.optimizer.reset()
            return
        model = self._classifier
        optimizer = make_guarded_optimizer(**self._describe_optimizer(model, total_steps))
        # `TaskBatches` divides the weights of tags and of parts, so the losses use sum reduction.
        are_sums = self._data.train.labelled_tokens.any() or self._parts > 1
        losses = None
        if are_sums:
            losses = keras.tree.map_structure(
                lambda loss: type(loss).from_config(loss.get_config() | {"reduction": "sum"}),
                model.make_losses_and_metrics()[0],
            )
        weights = model.default_loss_weights if are_sums else None
        # A run of PyTorch on a GPU would compile each of its widths for longer than it takes.
        jit_compile = False if keras.backend.backend() == "torch" else "auto"
        model.compile(
            optimizer=optimizer,
            loss=losses,
            loss_weights=weights,
            jit_compile=jit_compile,
            auto_scale_loss=False,  # the guard does
        )


# Choose the number of gradient accumulation parts of the batches of a fine-tuning run.

PART_COUNTS = (1, 2, 4)
# Cost of one more part, in token positions: its gradients of all weights are added to those of the other parts. The
# cost of a position is also proportional to the weights of the encoder, so the ratio depends little on model size.
# JAX, MiniLM (6 layers of 384, 22.7 million weights), float32, one core: 0.17 s per part, 1.0 ms per position.
PART_COST = 170


def choose_parts(config: PipelineConfig, features: Features) -> int:
    """Return `finetuning.accumulate_batches`; default: the number of parts that makes a step cheapest.

    The number of parts does not change the step. More parts have less padding, but each has a fixed cost. One part is
    used if more gain nothing: on PyTorch, which skips padding (`layers.attention`), on an accelerator, where a small
    part takes as long as a large one, and for batches grouped by length. A loss that compares all pairs of a batch also
    needs one part.
    """
    settings = config.finetuning
    if settings.accumulate_batches is not None:
        return settings.accumulate_batches
    is_contrastive = getattr(config.task, "objective", None) == "contrastive"
    if settings.group_by_length or is_contrastive or not COMPILES_SHAPES or not is_on_processor():
        return 1
    costs = {
        count: make_batches(config, features, settings.seeds[0], count).mean_positions + PART_COST * count
        for count in PART_COUNTS
        if settings.batch_size % count == 0
    }
    return min(costs, key=lambda count: costs[count])


def make_batches(config: PipelineConfig, features: Features, seed: int, parts: int) -> TaskBatches:
    """Return the training batches of a run."""
    settings = config.finetuning
    options = (settings.max_widths, settings.group_by_length, parts, COMPILES_SHAPES)
    return TaskBatches(features, settings.batch_size, seed, *options, packs=settings.packing)


# Early stopping on the dev score.


class StopWithoutGain(keras.callbacks.Callback):
    """Stop training when the score has not improved for `patience` evaluations; with `loss`, neither score nor loss.

    It reads the log, which survives restarts, so a killed and resumed run stops at the same step.

    Args:
        folder: of the run, with its log.
        field: score in a line of the log; higher is better.
        patience: evaluations without a new best score.
        loss: loss in a line of the log; lower is better, and a new minimum also counts as an improvement. Random
            weights may predict one class for epochs while their loss already falls.
        warmup: number of evaluations during learning rate warm-up, which do not count against `patience`.
    """

    def __init__(self, folder: Path, field: str, patience: int, loss: str | None = None, warmup: int = 0):
        super().__init__()
        self._folder, self._field, self._patience, self._loss = folder, field, patience, loss
        self._warmup = warmup

    def on_epoch_end(self, epoch, logs=None):
        if self._field not in (logs or {}):
            return
        lines = [line for line in read_log(self._folder) if self._field in line]
        scores = [line[self._field] for line in lines]
        gains = [scores.index(max(scores)), self._warmup - 1]
        if self._loss is not None:
            losses = [line[self._loss] for line in lines]
            gains.append(losses.index(min(losses)))
        if len(scores) - 1 - max(gains) >= self._patience:
            self.model.stop_training = True


# Model card of a fine-tuned model: task, training recipe and scores.

RECIPE = ("optimizer", "learning_rate", "epochs", "batch_size", "sequence_length", "layer_decay", "precision")
PARTIAL = ("frozen_layers", "lora_rank", "lora_alpha", "lora_targets")  # settings of runs that train some weights only


def describe_run(config: PipelineConfig, data: TaskData, run: Mapping[str, Any]) -> Card:
    """Return the model card of a fine-tuned model; the scores of other runs are in the report.

    Args:
        config: of the run, with a task.
        data: the training and dev data.
        run: content of `run.json`: start, seed, seconds and score.
    """
    settings, task = config.finetuning.model_dump(mode="json"), data.task
    facts = [
        ["task", config.task.name],
        ["kind", task.kind.replace("_", " ")],
        ["started from", f"{run['start']} weights" if run["start"] == "random" else "a pre-trained model"],
        ["examples to train on", f"{len(data.train):,}"],
        ["examples of the dev table", f"{len(data.dev_examples):,}"],
    ]
    if cut := describe_cut(data.texts.get("train", {})):
        facts.append(["training texts that are cut", cut])
    names = (*RECIPE, *(name for name in PARTIAL if settings["lora_rank" if "lora" in name else name] is not None))
    shown = {name: settings[name] for name in names}
    shown = {name: ", ".join(value) if isinstance(value, list) else str(value) for name, value in shown.items()}
    recipe = [[name.replace("_", " "), value] for name, value in shown.items()] + [["seed", str(run["seed"])]]
    recipe.append(["trained parameters", f"{run['trained_parameters']:,} of {run['parameters']:,}"])
    score = [[task.main_metric.replace("_", " "), f"{run['score']:.4f}"]]
    if data.guess_score is not None:
        score.append(["of the commonest answer to the training table", f"{data.guess_score:.4f}"])
    if data.word_score is not None:
        score.append([f"of {task.word_baseline}, fitted on the same labels", f"{data.word_score:.4f}"])
    if found := run.get("calibration"):
        score.append(["temperature of the probabilities, chosen there", f"{found['temperature']:.3f}"])
        if biases := found["biases"]:
            score.append(["biases of the classes, chosen there", ", ".join(f"{bias:.3f}" for bias in biases)])
        errors = f"{found['error_before']:.4f} before it, {found['error_after']:.4f} with it"
        score.append(["expected calibration error", errors])
    sections = (("Task", facts), ("Training", recipe), ("Score on the dev table", score))
    return Card(config.task.name, (*sections, describe_machine(run["seconds"])))
