"""Map each stage to the command that makes its folder, run it unless the folder exists, and find folders.

Nothing here depends on Prefect: the folders are the source of truth, and the same commands can be run by hand.
"""

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from flows.child import run_child
from flows.parameters import local_runs, write_config
from keras_bert_flow.checks.stages import check_label_words
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.console import interrupts
from keras_bert_flow.console.interrupts import RUN_BEGAN, STAGE_SECONDS
from keras_bert_flow.files.paths import find_address, make_folder, name_path
from keras_bert_flow.results.adoption import find_earlier
from keras_bert_flow.results.artifacts import locked
from keras_bert_flow.results.manifest import MANIFEST, check_folder, read_manifest
from keras_bert_flow.results.publishing import close_plan, hold_key
from keras_bert_flow.results.stages.data import (
    CORPUS,
    RECORDS,
    VOCABULARY,
    corpus_key,
    records_key,
    resolve_builtin,
    vocabulary_key,
)
from keras_bert_flow.results.stages.keys import Stage, needs_builtin
from keras_bert_flow.results.stages.models import DISTILLATION, PRETRAINING, distillation_key, pretraining_key
from keras_bert_flow.results.stages.tasks import (
    AUGMENTATION,
    EVALUATION,
    FINETUNING,
    augmentation_key,
    evaluation_key,
    finetuning_key,
    resolve_augmented,
)
from keras_bert_flow.stores.fetching import fetch, fetch_manifest, is_finished
from keras_bert_flow.text.corpus.inputs import LOCAL, Storage, is_remote
from keras_bert_flow.text.corpus.lines import check_rejected
from keras_bert_flow.text.tokenizers.files import find_tokenizer_file

COMMAND = (sys.executable, "-m", "keras_bert_flow")
MESSAGE = "kbf: "  # before the message of a failed command; removed here, since it is added again when printed
MAX_STARTS = 5
EVALUATION_SHARE = 0.1  # of the minutes of a run, at most one minute; the report is written after all else
LEAST_STAGE_SECONDS = 20.0  # whatever is left: less is no training
NO_NEXT_STEP = {"KBF_NEXT_STEPS": "off"}  # a command would suggest the next step, which the flow knows
IS_THERE = "is there"  # how a finished stage is reported
MODEL = "model"  # the model directory within a folder of pre-training
REPORT = "report.html"  # within a folder of evaluation
NOWHERE = Path(os.devnull)  # `NOWHERE / name` stands for the folder of a stage that is not made


class StageError(RuntimeError):
    """A stage's command failed for a reason that the user cannot fix in the configuration."""


class Unfinished(Exception):
    """A stage, which is named, must run before the key of another is known."""


@dataclass(frozen=True)
class StageRun:
    """A command and the folder that it publishes.

    Attributes:
        folder: the folder, which may be remote; `name_path` gives its address.
        key: content key of the result, and name of the folder.
        words: of the command, without `--config` and its file.
        environment: environment variables that the command needs in addition.
        config: written to the file of `--config`.
    """

    name: str
    key: str
    folder: Path
    words: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    config: PipelineConfig | None = None

    @cached_property
    def command(self) -> tuple[str, ...]:
        """The command; its configuration is written when it is asked for, so that a plan writes nothing."""
        return self.words if self.config is None else (*self.words, "--config", str(write_config(self.config)))

    def is_finished(self) -> bool:
        return is_finished(self.folder, self.key)

    def say(self, how: str) -> str:
        return f"{self.name} {self.key}: {how}, in {name_path(self.folder)}"


def corpus_stage(config: PipelineConfig) -> StageRun:
    """Return the stage that writes the built-in corpus and task to this disk, needed if `needs_builtin(config)`."""
    return replace(
        _stage(config.model_copy(update={"runs": str(local_runs(config))}), CORPUS, corpus_key()), config=None
    )


def vocabulary_stage(config: PipelineConfig) -> StageRun:
    key = vocabulary_key(config.corpus, config.vocabulary, find_storage(config))
    return _check_text(config, _stage(config, VOCABULARY, key))


def records_stage(config: PipelineConfig, vocabulary: Path) -> StageRun:
    file = find_tokenizer_file(fetch(_require_made(vocabulary)))
    key = records_key(config.corpus, config.records, file, config.vocabulary.cased, config.seed, find_storage(config))
    return _check_text(config, _stage(config, RECORDS, key, "--vocab", file))


def pretraining_stage(config: PipelineConfig, records: Path, initial_model: Path | None = None) -> StageRun:
    key = pretraining_key(config, _fetch_input(records), initial_model and _fetch_input(initial_model))
    initial = ("--initial-model", initial_model) if initial_model else ()
    return _stage(config, PRETRAINING, key, "--records", records, *initial)


def distillation_stage(config: PipelineConfig, records: Path, teacher: Path) -> StageRun:
    key = distillation_key(config, _fetch_input(records), _fetch_input(teacher))
    return _stage(config, DISTILLATION, key, "--records", records, "--teacher", teacher)


def augmentation_stage(config: PipelineConfig, model: Path) -> StageRun:
    return _stage(config, AUGMENTATION, augmentation_key(config, _fetch_input(model)), "--model", model)


def finetuning_stage(config: PipelineConfig, model: Path) -> StageRun:
    return _stage(config, FINETUNING, finetuning_key(config, _fetch_input(model)), "--model", model)


def evaluation_stage(config: PipelineConfig, finetuned: Path, phases: Sequence[Path], records: Path) -> StageRun:
    """Return the stage of the report; `phases` are the folders of pre-training and distillation, in order."""
    key = evaluation_key(config, _fetch_input(finetuned), _fetch_input(records), [*map(_fetch_input, phases)])
    inputs: list[str | Path] = ["--finetuned", finetuned, "--pretrained", phases[-1], "--records", records]
    for folder in phases[:-1]:
        inputs += ["--earlier", folder]
    return _stage(config, EVALUATION, key, *inputs)


def make_builtin(config: PipelineConfig, make: Callable[[StageRun], Path]) -> PipelineConfig:
    """Replace the word `builtin` in a configuration by files, which are made or found first."""
    return resolve_builtin(config, _require_made(make(corpus_stage(config)))) if needs_builtin(config) else config


def make_all(config: PipelineConfig, make: Callable[[StageRun], Path]) -> Path:
    """Make or find every stage of a run, in order.

    Args:
        make: takes a stage and returns its folder.
    Returns:
        The folder of the report.
    """
    make = in_time(config, make)
    config = make_builtin(config, make)
    records = make_records(config, make)
    if config.finetuning.label_words:
        check_label_words(config, find_tokenizer_file(fetch(_require_made(records[-1]), wait=False)))
    phases = make_pretrained(config, records, make)
    config = make_augmented(config, [phase / MODEL for phase in phases], make)
    finetuned = make(finetuning_stage(config, phases[-1] / MODEL))
    return make(evaluation_stage(config, finetuned, phases, records[-1]))


def in_time(config: PipelineConfig, make: Callable[[StageRun], Path]) -> Callable[[StageRun], Path]:
    """Return `make`, which in a run with `minutes` tells the stages that train what is left of them."""
    # In the order of the run; a distillation has the minutes of pre-training.
    own = {} if config.has_own_teacher else {PRETRAINING.name: config.pretraining.minutes}
    own |= {} if config.distillation is None else {DISTILLATION.name: config.student.pretraining.minutes}
    own[FINETUNING.name] = config.finetuning.minutes
    minutes = config.minutes
    if minutes is None:
        return make
    began = float(os.environ.get(RUN_BEGAN) or time.time())
    ends = began + 60 * (minutes - min(1.0, EVALUATION_SHARE * minutes))

    def make_in_time(stage: StageRun) -> Path:
        """Make a stage within its share of the time that is left."""
        share = own.get(stage.name)
        if share is None:
            return make(stage)
        names = list(own)
        later = sum(own[name] or 0.0 for name in names[names.index(stage.name) + 1 :])
        seconds = max(LEAST_STAGE_SECONDS, (ends - time.time()) * share / (share + later))
        return make(replace(stage, environment={**stage.environment, STAGE_SECONDS: f"{seconds:.0f}"}))

    return make_in_time


def make_records(config: PipelineConfig, make: Callable[[StageRun], Path]) -> list[Path]:
    """Make or find the vocabulary, and the records of each phase of pre-training."""
    vocabulary = make(vocabulary_stage(config))
    return [make(records_stage(phase, vocabulary)) for phase in config.phases]


def make_pretrained(config: PipelineConfig, records: Sequence[Path], make: Callable[[StageRun], Path]) -> list[Path]:
    """Make or find the result of each phase of pre-training, and then of the distillation, if any.

    Each phase continues from the model of the previous one. With a given teacher, nothing is pre-trained.

    Raises:
        ValueError: the number of records folders differs from the number of phases.
    """
    if len(records) != len(config.phases):
        raise ValueError(
            f"Each phase of pre-training must have its records. Received: {len(records)} folder for "
            f"{len(config.phases)} phases. Leave the folder out, or second_phase."
        )
    folders: list[Path] = []
    if not config.has_own_teacher:
        model = Path(config.initial_model) if config.initial_model else None
        for phase, folder in zip(config.phases, records, strict=True):
            folders.append(make(pretraining_stage(phase, folder, model)))
            model = folders[-1] / MODEL
    if config.distillation is not None:
        teacher = folders[-1] / MODEL if folders else Path(config.distillation.teacher or "").absolute()
        folders.append(make(distillation_stage(config, records[-1], teacher)))
    return folders


def make_augmented(config: PipelineConfig, models: Sequence[Path], make: Callable[[StageRun], Path]) -> PipelineConfig:
    """Make or find the augmented training table, if there is to be one, and return the configuration that trains on it.

    Args:
        models: those of pre-training and distillation, in order: the words are proposed by the last that was
            pre-trained, unless the configuration names another model or a teacher.
    """
    if config.augmentation is None:
        return config
    given = config.augmentation.model or (config.distillation.teacher if config.distillation else None)
    own = models[-2 if config.distillation is not None and len(models) > 1 else -1]
    stage = augmentation_stage(config, Path(given).absolute() if given else own)
    return resolve_augmented(config, fetch(_require_made(make(stage))))


def run_stage(
    stage: StageRun, on_line: Callable[[str], None] = print, follow: Callable[[], None] | None = None
) -> bool:
    """Make the stage's folder, unless it is finished already.

    Args:
        on_line, follow: see `run_child`.
    Returns:
        True if the folder existed, False if the command had to run.
    Raises:
        ValueError: the command reported an error that the user can fix; the message is its line.
        StageError: the command failed otherwise, was killed, or published nothing.
    """
    if stage.is_finished():
        return True
    if not find_address(stage.folder) and (earlier := find_earlier(stage.folder)):
        adopting = f"`kbf runs adopt {earlier.parent.parent}` has it used"
        on_line(f"{stage.name} {stage.key}: an earlier version made it, {earlier}; {adopting}")
    if stage.name != CORPUS.name:  # without it, no other key is known
        close_plan()
    _set_aside_damaged(stage, on_line)
    status, last_line = interrupts.CHECKPOINTED, ""
    for start in range(MAX_STARTS):
        if start:
            on_line(f"{stage.name}: stopped at a checkpoint, going on from it.")
        status, last_line = _run_command(stage, on_line, follow)
        if status != interrupts.CHECKPOINTED:
            break
    if status == interrupts.USER_ERROR:
        raise ValueError(last_line.removeprefix(MESSAGE) or f"`{stage.name}` refused its input and did not say why.")
    if status != 0:
        last_words = f"Last line: {last_line.removeprefix(MESSAGE)}" if last_line else "It printed nothing."
        raise StageError(f"`{stage.name}` must end with status 0. {_describe(status)} {last_words}")
    if not stage.is_finished():
        raise StageError(
            f"`{stage.name}` must publish {name_path(stage.folder)} with key {stage.key}. It ended without doing so."
        )
    return False


def find_storage(config: PipelineConfig) -> Storage:
    """Return the storage of the corpus; Beam takes a second to import, so it is used only for remote text."""
    if not any(map(is_remote, config.corpus.input)):
        return LOCAL
    from beam_jobs.storage import BeamStorage

    return BeamStorage(config.beam)


def _stage(config: PipelineConfig, stage: Stage, key: str, *inputs: str | Path) -> StageRun:
    hold_key(key)
    folder = Path(config.runs) / stage.name / key
    given = (name_path(given) if isinstance(given, Path) else given for given in (*inputs, "--output", folder))
    words = (*COMMAND, stage.command, *given)
    return StageRun(stage.name, key, folder, words, {"KERAS_BACKEND": config.backend}, config)


def _check_text(config: PipelineConfig, stage: StageRun) -> StageRun:
    """Return a stage that reads the corpus; ValueError if its result rejected more text than is allowed now."""
    if stage.is_finished():
        check_rejected(read_manifest(fetch_manifest(stage.folder)).counters, config.corpus.max_rejected_share)
    return stage


def _require_made(folder: Path) -> Path:
    """Return a folder that is the input of a stage; Unfinished if it stands for one that is not made."""
    if folder.is_relative_to(NOWHERE):
        raise Unfinished(folder.relative_to(NOWHERE).parts[0])
    return folder


def _fetch_input(folder: Path) -> Path:
    return fetch_manifest(_require_made(folder))


def _run_command(stage: StageRun, on_line: Callable[[str], None], follow: Callable[[], None] | None) -> tuple[int, str]:
    lines: deque[str] = deque(maxlen=1)

    def keep(line: str) -> None:
        lines.append(line)
        on_line(line)

    status = run_child(stage.command, NO_NEXT_STEP | dict(stage.environment), keep, follow=follow)
    return status, lines[-1] if lines else ""


def _set_aside_damaged(stage: StageRun, on_line: Callable[[str], None]) -> None:
    """Rename a damaged folder, so that it can be made again and nothing is lost.

    A remote folder stays: the command reports what is wrong with it.
    """
    folder = stage.folder
    if find_address(folder):
        return
    make_folder(folder.parent, in_store=True)
    with locked(
        folder.with_name(f".{folder.name}.lock"), tell=on_line
    ):  # writers hold it too, see `results.artifacts.publishing`
        if folder.exists() and not stage.is_finished():
            try:
                fault = f"its manifest has the key {check_folder(folder).key}"
            except (FileNotFoundError, ValueError) as error:
                fault = str(error).partition("Received: ")[2].partition(". ")[0]
            number = 1 + sum(1 for _ in folder.parent.glob(f"{folder.name}.damaged-*"))
            aside = folder.rename(folder.with_name(f"{folder.name}.damaged-{number}"))
            on_line(f"{stage.name}: {folder} is damaged ({fault}); kept as {aside.name}, making it again.")


def _describe(status: int) -> str:
    if status == interrupts.CHECKPOINTED:
        return f"It was stopped at a checkpoint {MAX_STARTS} times; run again to go on."
    return f"It was killed by signal {-status}." if status < 0 else f"It ended with {status}."


# Find the finished stages of a configuration and their published folders.


def find_all(config: PipelineConfig) -> list[StageRun] | None:
    """Return the stages of a run in order, with the report's last, if all are finished; else None.

    Args:
        config: the result of `resolve_config`.
    Raises:
        ValueError: more text of a result was rejected than the configuration allows.
    """
    found: list[StageRun] = []

    def find(stage: StageRun) -> Path:
        if not stage.is_finished():
            raise Unfinished(stage.name)
        found.append(stage)
        return stage.folder

    try:
        make_all(config, find)
    except Unfinished:
        return None
    return found


def find_records(config: PipelineConfig) -> list[Path]:
    """Return the finished records of each phase of pre-training; FileNotFoundError if any are missing."""
    return make_records(config, lambda stage: _require(stage, "preprocess"))


def find_pretrained(config: PipelineConfig, records: Sequence[Path]) -> list[Path]:
    """Return the finished folder of each phase of pre-training; FileNotFoundError if any is missing."""
    return make_pretrained(config, records, lambda stage: _require(stage, "pretrain"))


def find_finetuned(config: PipelineConfig, pretrained: Path) -> Path:
    return _require(finetuning_stage(config, pretrained / MODEL), "finetune")


def _require(stage: StageRun, flow_name: str) -> Path:
    if not find_address(stage.folder) and (stage.folder / MANIFEST).is_file():
        check_folder(stage.folder)  # its error names the damaged file
    if not stage.is_finished():
        raise FileNotFoundError(
            f"`{stage.name}` must be finished first. Received: {name_path(stage.folder)}, not there. "
            f"Run the flow `{flow_name}` with the same configuration, or name the folder."
        )
    return stage.folder
