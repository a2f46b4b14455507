"""Run a trial of a hyperparameter search up to the objective, and keep the folder of the search.

Nothing here depends on Prefect.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from flows.parameters import local_runs, resolve_config
from flows.stages import (
    MODEL,
    StageRun,
    find_storage,
    finetuning_stage,
    make_augmented,
    make_builtin,
    make_pretrained,
    make_records,
    run_stage,
    vocabulary_stage,
)
from keras_bert_flow.config.pipeline import PipelineConfig, TuningConfig
from keras_bert_flow.files.documents import read_json_object
from keras_bert_flow.files.inputs import InputStates, hold
from keras_bert_flow.files.outputs import work_folder
from keras_bert_flow.files.paths import find_address
from keras_bert_flow.results.artifacts import content_key, file_digest
from keras_bert_flow.results.stages import IN_ORDER
from keras_bert_flow.results.stages.keys import corpus_digests, drop_paths, folder_digest, hold_corpus, task_digests
from keras_bert_flow.results.stages.tasks import AUGMENTATION
from keras_bert_flow.stores.fetching import fetch
from keras_bert_flow.tasks.registry import make_task
from keras_bert_flow.text.objectives.mlm import Distillation
from keras_bert_flow.text.objectives.objective import find_objective
from keras_bert_flow.training.loop.logs import read_log

POLL_SECONDS = 0.5
Report = Callable[[int, float], None]


def resolve_trial(config_path: str, overrides: list[str], on_line: Callable[[str], None]) -> PipelineConfig:
    """Return the configuration of a trial, with the built-in corpus and task written to files.

    Parts that only a report needs are left out: the comparison with random weights and the curve over label counts.
    """
    config = resolve_config(config_path, overrides)
    left_out = {"compare_random": False, "compare_initial": False, "label_counts": None}
    finetuning = config.finetuning.model_copy(update=left_out)
    config = config.model_copy(update={"finetuning": finetuning, "tuning": None})
    return make_builtin(config, partial(_make, on_line=on_line))


def run_trial(config: PipelineConfig, objective: str, on_line: Callable[[str], None], report: Report) -> float:
    """Run the unfinished stages of a trial, and return the value of the objective.

    Args:
        config: the result of `resolve_trial`.
        objective: `dev_score`, the mean of the main metric over the seeds, or `held_out_loss`.
        report: takes (step, value) of each intermediate evaluation, the same and in the same order however often the
            trial is interrupted; an exception that it raises ends the stage by SIGTERM, with a checkpoint.
    Raises:
        ValueError, StageError: as for `run_stage`.
    """
    settings, last = config.distillation, config.phases[-1].records
    trained_on = find_objective(last.objective) if settings is None else Distillation.of(settings)
    main_loss = f"{trained_on.main_score}_loss"
    count = (0 if config.has_own_teacher else len(config.phases)) + (config.distillation is not None)
    trained = 0

    make = partial(_make, on_line=on_line)

    def make_trained(stage: StageRun) -> Path:
        nonlocal trained
        trained += 1
        if trained < count or objective != "held_out_loss":
            return make(stage)
        field = f"held_out_{main_loss}"
        return _make_followed(
            stage,
            lambda folder: ((line["step"], line[field]) for line in read_log(folder) if field in line),
            on_line,
            report,
        )

    phases = make_pretrained(config, make_records(config, make), make_trained)
    if objective == "held_out_loss":
        return read_json_object(fetch(phases[-1]) / "metrics.json")[main_loss]
    config = make_augmented(config, [phase / MODEL for phase in phases], make)
    stage = finetuning_stage(config, phases[-1] / MODEL)
    field = f"dev_{make_task(**config.task.arguments).main_metric}"
    folder = fetch(_make_followed(stage, lambda folder: _list_scores(config, folder, field), on_line, report))
    scores = [read_json_object(path)["score"] for path in sorted(folder.glob("pretrained/seed-*/run.json"))]
    return sum(scores) / len(scores)


def _make(stage: StageRun, on_line: Callable[[str], None]) -> Path:
    run_stage(stage, on_line)
    return stage.folder


def _make_followed(
    stage: StageRun,
    list_values: Callable[[Path], Iterator[tuple[int, float]]],
    on_line: Callable[[str], None],
    report: Report,
) -> Path:
    """Make a stage's folder, and report the values in its logs as they appear."""
    reported, looked_at = 0, 0.0

    def look(folder: Path) -> None:
        nonlocal reported
        for step, value in [*list_values(folder)][reported:]:
            reported += 1
            report(step, value)

    def follow() -> None:
        nonlocal looked_at
        if time.monotonic() - looked_at > POLL_SECONDS and not find_address(stage.folder):
            looked_at = time.monotonic()
            look(work_folder(stage.folder))

    run_stage(stage, on_line, follow)
    look(fetch(stage.folder))  # the last lines, or all if the folder existed
    return stage.folder


def _list_scores(config: PipelineConfig, folder: Path, field: str) -> Iterator[tuple[int, float]]:
    """Yield, for each epoch of each seed, the mean of its score and the published scores of the seeds before."""
    before: list[float] = []
    for place, seed in enumerate(config.finetuning.seeds):
        lines = read_log(folder / "pretrained" / f"seed-{seed}")
        scores = [line[field] for line in lines if field in line]
        for epoch, score in enumerate(scores, 1):
            yield place * config.finetuning.epochs + epoch, sum([*before, score]) / (len(before) + 1)
        if not scores:
            return
        before.append(max(scores) if config.finetuning.publish == "best" else scores[-1])


# Name the folder of a search by what its trials have in common, so that the same command resumes it.

FOLDER = "tuning"
REVISION = 1
NOT_IN_KEY = {"name", "runs", "beam", "distribution", "loggers", "tuning", "evaluation"}


def find_search_folder(
    config_path: str,
    overrides: Sequence[str],
    tuning: TuningConfig,
    objective: str,
    on_line: Callable[[str], None],
) -> tuple[Path, InputStates]:
    """Return the local folder of a search, keyed by what its trials have in common, and the states of these inputs.

    That is the text, the tables, the vocabulary or model that they start from, and the settings except the number of
    trials.
    """
    config = resolve_trial(config_path, [*overrides], on_line)
    corpus, held = hold_corpus(config.corpus, find_storage(config))
    config = config.model_copy(update={"corpus": corpus})
    tables = [config.task.train, config.task.dev] if objective == "dev_score" else []
    given = config.needed_augmentation.model, config.needed_augmentation.stop_words
    held |= hold(*tables, *filter(None, (config.vocabulary.file, config.initial_model, *given)))
    absent = set() if config.augmentation else {AUGMENTATION.name}  # section and stage have one name
    settings = drop_paths(config.model_dump(mode="json", exclude=NOT_IN_KEY | absent))
    revisions = {stage.name: stage.revision for stage in IN_ORDER if stage.name not in absent}
    settings["revisions"] = revisions  # of what gives a trial its score
    settings["tuning"] = tuning.model_dump(mode="json", exclude={"trials", "objective"}) | {"objective": objective}
    inputs = {"text": vocabulary_stage(config).key}
    if config.vocabulary.file:  # then that is all that the key of the vocabulary names
        inputs |= corpus_digests(corpus, find_storage(config))
    if config.initial_model:
        inputs["initial_model"] = folder_digest(fetch(config.initial_model))
    if objective == "dev_score":
        inputs |= task_digests(config)
        model, stop_words = given
        inputs |= {"augmentation": folder_digest(Path(model))} if model else {}
        inputs |= {"stop_words": file_digest(Path(stop_words))} if stop_words else {}
    return local_runs(config) / FOLDER / content_key(FOLDER, settings, inputs, REVISION), held
