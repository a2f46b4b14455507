"""Fine-tune a model on a task, once per seed, and for comparison the same model from random weights."""

import gc
import json
import logging
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import keras

from keras_bert_flow.backends.runtime import arithmetic
from keras_bert_flow.backends.steps import keeping_compilations
from keras_bert_flow.config.pipeline import PipelineConfig, resolve_precision
from keras_bert_flow.console.interrupts import stage_seconds
from keras_bert_flow.console.terminal import told_if_long
from keras_bert_flow.conversion.adapters import check_whole
from keras_bert_flow.conversion.directory_files import read_json, read_shape
from keras_bert_flow.data.model_tokenizer import read_tokenizer
from keras_bert_flow.files.documents import read_json_object
from keras_bert_flow.files.inputs import hold
from keras_bert_flow.files.paths import check_local
from keras_bert_flow.results.artifacts import removed_on_leaving, write_atomically
from keras_bert_flow.results.publishing import Contents, published
from keras_bert_flow.results.stages.models import INITIAL
from keras_bert_flow.results.stages.tasks import FINETUNING, drop_copies, finetuning_inputs, finetuning_key
from keras_bert_flow.stores.fetching import fetch
from keras_bert_flow.tasks.baselines.word_baseline import answer_from_words
from keras_bert_flow.training.finetuning.grid import FOLDER as LABEL_COUNTS
from keras_bert_flow.training.finetuning.grid import (
    GRIDS,
    REUSED,
    list_label_counts,
    list_points,
    reuse_baseline,
    search_grid,
    train_label_counts,
    with_random_training,
)
from keras_bert_flow.training.finetuning.task_data import (
    UNREACHABLE,
    TaskData,
    fetch_tables,
    read_task_data,
    read_training,
)
from keras_bert_flow.training.finetuning.task_runs import PRETRAINED, RANDOM, RUN_FILE, TaskRuns
from keras_bert_flow.training.fit import check_task_teacher, check_trained_part

_logger = logging.getLogger(__name__)


def finetune(
    config: PipelineConfig,
    model: str | Path,
    output: str | Path,
    report: Callable[[Mapping[str, Any]], None] = print,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    data: TaskData | None = None,
) -> Path:
    """Fine-tune and publish a folder with `<start>/seed-<n>/`, each with `model/`, `log.jsonl` and `run.json`.

    It returns at once if the folder exists, and resumes a killed run. `<start>` is `pretrained` and, unless comparison
    is turned off, `random`: the same shape from new weights, trained until it stops improving; see
    `with_random_training`. Beside them is `initial`, if pre-training began with embeddings from counts and published
    that model beside this one. Runs from random weights that another result beside the folder has are copied; see
    `reuse_baseline`. With `finetuning.grid`, each of its points is trained first, from the first two
    starts. The best one gives the settings of the published runs, and `grid.json` and `grid-random.json` list all; see
    `search_grid`. With `finetuning.label_counts`, the model is also trained on fewer labels, and `label-counts.json`
    has the scores; see `train_label_counts`. Labels that no model can predict are counted in a warning and in
    `unreachable.json`; see `Task.count_unreachable`.

    Args:
        config: its sections `task` and `finetuning` are used.
        model: a model directory, ours or Hugging Face's.
        output: the folder.
        report: called with every line of a log, to which are added `run`, its `total_steps`, and `run_number` of
            `run_count`, which counts the grid points and label counts as well.
        callbacks: as for `pretrain`, begun and ended in each run. An epoch is the steps from one line of the log to the
            next, not a pass over the table.
        data: output of `read_task_data` for this configuration and model, if already read.
    Raises:
        FileNotFoundError: a table or the model is missing.
        ValueError: a table or the model is unusable, or changes meanwhile; the message says why.
        Interrupted: on SIGTERM or SIGINT; run again to resume.
    Example:
        >>> config, log = kbf.load_config("run.yaml"), []
        >>> folder = kbf.finetune(config, "model", "out/finetuned", report=log.append)
        >>> sorted(path.name for path in folder.glob("*/seed-1"))
        ['seed-1', 'seed-1']
        >>> kbf.load(folder / "pretrained" / "seed-1" / "model").predict(["a fine film"])[0]["label"] in ("neg", "pos")
        True
    """
    output = check_local(output)
    config = fetch_tables(resolve_precision(config, keras.backend.backend()))
    if config.distribution.kind not in ("auto", "single"):
        _logger.warning(
            "Fine-tuning takes one device: distribution.kind=%s is for pre-training.", config.distribution.kind
        )
    model = fetch(model)
    # The model as it was before the first step of its pre-training, if that published it beside the model.
    folder = model.parent / INITIAL
    initial = folder if config.finetuning.compare_initial and (folder / "config.json").is_file() else None
    teacher = None if config.finetuning.teacher is None else Path(config.finetuning.teacher)
    inputs = hold(*(folder for folder in (model, initial, teacher) if folder is not None))
    check_whole(model)
    key = finetuning_key(config, model)
    shape = read_shape(read_json(model / "config.json"), str(model / "config.json"))
    check_trained_part(config, shape)
    tokenizer = read_tokenizer(model)
    check_task_teacher(config, shape, tokenizer)
    data = data or read_task_data(config, tokenizer)
    data = replace(data, inputs=inputs | data.inputs)

    with (
        arithmetic(config.finetuning.precision),
        tempfile.TemporaryDirectory(prefix="kbf-") as place,
        removed_on_leaving(place),
        keeping_compilations(place),
        published(
            output, FINETUNING.name, key, resumable=True, inputs=data.inputs, revision=FINETUNING.revision
        ) as result,
    ):
        if result is None:
            return output
        work, has_initial = result.folder, initial is not None
        data = replace(data, word_score=score_word_baseline(config, data))
        order = [work / run for run in list_runs(config, has_initial)]
        make_runs = partial(
            TaskRuns,
            model=model,
            tokenizer=tokenizer,
            data=data,
            report=report,
            callbacks=callbacks,
            key=key,
            order=order,
        )
        trained: dict[str, PipelineConfig] = {}
        clock = StageClock(config, work, has_initial)
        for start, settings in list_starts(config, has_initial):
            if start == RANDOM:
                reuse_baseline(settings, output.parent, work, make_runs(settings).identity)
            if start == INITIAL:
                settings = trained.get(RANDOM, settings)  # what the grid chose, if there is one
            elif settings.finetuning.grid is not None:
                settings = search_grid(settings, data.task, work, make_runs, start)
            runs = make_runs(settings, model=initial) if start == INITIAL and initial else make_runs(settings)
            for seed in settings.finetuning.seeds:
                runs.finish(work / start / f"seed-{seed}", start, seed, seconds=clock.share())
            trained[start] = settings
            del runs
            gc.collect()  # Keras models are part of reference cycles; the next one takes as much memory again
        trained.pop(INITIAL, None)
        if config.finetuning.label_counts:
            train_label_counts(trained, tokenizer, data, work, make_runs)
        if data.unreachable:
            write_atomically(work / UNREACHABLE, json.dumps(data.unreachable, indent=1).encode())
        facts = config.model_dump(mode="json", include={"task", "finetuning", "backend"})
        result.contents = Contents(facts, finetuning_inputs(config, model), data.texts)
    return output


class StageClock:
    """The time of `finetuning.minutes`, shared by the runs that are left of the stage."""

    def __init__(self, config: PipelineConfig, work: Path, has_initial: bool = False):
        self._minutes, seeds = config.finetuning.minutes, config.finetuning.seeds
        self._ends = time.monotonic() + stage_seconds(self._minutes or 0)
        starts = [start for start, _ in list_starts(config, has_initial)]
        self._files = [work / start / f"seed-{seed}" / RUN_FILE for start in starts for seed in seeds]
        finished = [read_json_object(file) for file in self._files if file.is_file()]
        self._before = sum(run["seconds"] for run in finished if REUSED not in run)  # in earlier processes

    def share(self) -> float | None:
        """Return the seconds of the next run; None if there is no limit."""
        if self._minutes is None:
            return None
        left = sum(not file.is_file() for file in self._files)
        return (self._ends - time.monotonic() - self._before) / max(1, left)


def list_starts(config: PipelineConfig, has_initial: bool = False) -> Iterator[tuple[str, PipelineConfig]]:
    """Yield each start, `pretrained`, `random` or `initial`, and the configuration of its runs."""
    yield PRETRAINED, config
    if config.finetuning.compare_random:
        yield RANDOM, with_random_training(config)
    if has_initial:
        without = with_random_training(config)
        yield INITIAL, without.model_copy(update={"finetuning": without.finetuning.model_copy(update={"grid": None})})


def list_runs(config: PipelineConfig, has_initial: bool = False) -> Iterator[str]:
    """Yield the folder of each run of the stage in order, relative to that of the result."""
    starts = dict(list_starts(config, has_initial))
    folders = []
    for start, settings in starts.items():
        grid = settings.finetuning.grid
        folders += [start] if grid is None else [f"{GRIDS[start]}/{point.name}" for point in list_points(grid)]
    for count in list_label_counts(config):
        folders += [f"{LABEL_COUNTS}/{count}/{start}" for start in starts if start != INITIAL]
    yield from (f"{folder}/seed-{seed}" for folder in folders for seed in config.finetuning.seeds)


# Score of the TF-IDF baseline, for model cards.
#
# It is separate from `task_data`, which every command imports: scikit-learn takes longer to load than everything else.


def score_word_baseline(config: PipelineConfig, data: TaskData) -> float | None:
    """Return the main metric on the dev table of TF-IDF with a linear model, fitted on the training table itself.

    The report computes the same. None if the kind of task has no such baseline.
    """
    task, training = data.task, drop_copies(config.task.train, read_training(config, data.task)[0])
    with told_if_long(f"Fitting TF-IDF and a linear model to {len(training):,} examples, for the cards"):
        answers = answer_from_words(task, training, {"dev": data.dev_examples}, config.seed)
    return None if answers is None else task.score(data.dev_examples, answers.predictions["dev"])[task.main_metric]
