"""More than one fine-tuning: grid search, scores by number of labels, and random weights for comparison."""

import gc
import itertools
import json
import logging
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from keras_bert_flow.config.finetuning import MERGED, GridConfig
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.files.documents import read_json_object
from keras_bert_flow.results.artifacts import canonical_json, content_key, write_atomically
from keras_bert_flow.results.manifest import check_folder, read_manifest
from keras_bert_flow.tasks.core.metrics import summarise_runs
from keras_bert_flow.tasks.core.task import Task
from keras_bert_flow.text.tokenizers.tokenizer import Tokenizer
from keras_bert_flow.training.finetuning.task_data import TaskData, read_training
from keras_bert_flow.training.finetuning.task_runs import MODEL, PRETRAINED, RANDOM, RUN_FILE, TaskRuns
from keras_bert_flow.training.loop.identity import REVISION, drop_earlier
from keras_bert_flow.training.loop.logs import read_log

# Start → folder of the grid points; with `.json`, their table.
GRIDS = {PRETRAINED: "grid", RANDOM: "grid-random"}


@dataclass(frozen=True)
class Point:
    """Settings of `finetuning` at one point of a grid."""

    learning_rate: float
    epochs: int
    batch_size: int

    @property
    def name(self) -> str:
        return f"rate-{self.learning_rate!r}-batch-{self.batch_size}-epochs-{self.epochs}"

    def resolve(self, config: PipelineConfig) -> PipelineConfig:
        """Return the configuration with the settings of this point."""
        finetuning = config.finetuning.model_copy(update=asdict(self))
        return config.model_copy(update={"finetuning": finetuning})


def list_points(grid: GridConfig) -> list[Point]:
    """Return all grid points, the cheapest first: by epochs, steps per epoch, then in the order of the rates."""
    points = itertools.starmap(Point, itertools.product(grid.learning_rate, grid.epochs, grid.batch_size))
    return sorted(points, key=lambda point: (point.epochs, -point.batch_size))


def find_best(rows: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the row with the highest mean, the first of ties; None if every row has a failed run."""
    finished = [row for row in rows if row["score"] is not None]
    return max(finished, key=lambda row: row["score"]["mean"], default=None)


def search_grid(
    config: PipelineConfig,
    task: Task,
    work: Path,
    make_runs: Callable[..., TaskRuns],
    start: str = PRETRAINED,
) -> PipelineConfig:
    """Train every grid point once per seed, unless already done, and return the configuration of the best one.

    The best point has the highest mean of the main metric on the dev table over the seeds; ties go to the first of
    `list_points`. A point with a run that met NaN or infinity is never chosen, and not trained further.

    Args:
        config: with `finetuning.grid`.
        task: the task of the runs.
        work: the runs of the best point become `<start>/seed-<n>/` in this folder, as without a grid. For the other
            points, `grid/<point>/seed-<n>/` keeps `run.json` and the log, but no model. `grid.json` is written when all
            are trained: kind, main_metric, chosen (a name) and points, the cheapest first, rows of `_train_points`. For
            random weights these are `grid-random` and `grid-random.json`.
        make_runs: `TaskRuns` with all arguments but the configuration.
        start: `pretrained` or `random`.
    Raises:
        ValueError: no point can be chosen, or the work folder has other settings.
    Source: Devlin et al. 2019, appendix A.3, which also selects on the dev set.
    """
    table = work / f"{GRIDS[start]}.json"
    if not table.is_file():
        rows = _train_points(config, work / GRIDS[start], make_runs, start)
        best = find_best(rows)
        if best is None:
            raise ValueError(
                f"A grid must have a point at which no run meets NaN or infinity. Received: {len(rows)}, all with such "
                f"runs; the first says: {rows[0]['runs'][-1]['failure']} Take another grid, and another output folder."
            )
        facts = {"kind": task.kind, "main_metric": task.main_metric, "chosen": best["name"], "points": rows}
        write_atomically(table, json.dumps(facts, indent=1).encode())
    facts = read_json_object(table)
    chosen = next(row for row in facts["points"] if row["name"] == facts["chosen"])
    if not (work / start).exists():
        os.rename(work / GRIDS[start] / chosen["name"], work / start)  # atomic for all its runs
    return Point(**{field.name: chosen[field.name] for field in fields(Point)}).resolve(config)


def _train_points(
    config: PipelineConfig, folder: Path, make_runs: Callable[..., TaskRuns], start: str
) -> list[dict[str, Any]]:
    """Return a row per point: name, settings, score, seconds, runs.

    The score is a mean with its standard_deviation, minimum and maximum. It and the seconds are null on NaN.
    """
    rows: list[dict[str, Any]] = []
    for point in list_points(config.finetuning.grid or GridConfig()):
        runs = make_runs(point.resolve(config))
        trained: list[dict[str, Any]] = []
        for seed in config.finetuning.seeds:
            run = runs.finish(folder / point.name / f"seed-{seed}", start, seed, may_fail=True)
            trained.append({name: run[name] for name in ("seed", "score", "seconds", "failure") if name in run})
            if run["score"] is None:
                break
        del runs
        has_failed = any(run["score"] is None for run in trained)
        score = None if has_failed else summarise_runs([{"score": run["score"]} for run in trained])["score"]
        seconds = None if has_failed else round(sum(run["seconds"] for run in trained), 1)
        rows.append({"name": point.name, **asdict(point), "score": score, "seconds": seconds, "runs": trained})
        best = find_best(rows)
        for row in rows:  # at most one point keeps its models, to save disk space
            if row is not best:
                for model in (folder / row["name"]).glob(f"seed-*/{MODEL}"):
                    shutil.rmtree(model)
        gc.collect()  # Keras models are part of reference cycles; the next one takes as much memory again
    return rows


# Learning curve: train a task on subsets of its labels, from both starts, since pre-training helps most with few.

FOLDER, CURVE_FILE = "label-counts", "label-counts.json"
# Maximum epochs on few examples, by head start: a random head needs many (Mosbach et al. 2021, arXiv:2006.04884); a
# fitted head is past its best by then (docs/results.md, "On SST-2, from 64 MB of film reviews").
FEW_LABELS_EPOCHS = {"random": 20, "probe": 5}


def with_labels(config: PipelineConfig, count: int, rows: int) -> PipelineConfig:
    """Return the configuration of runs on the first `count` of `rows` examples.

    They have the same number of steps as with all rows, up to `FEW_LABELS_EPOCHS` epochs. With the same number of
    epochs, runs with the fewest labels would have the fewest steps.
    """
    settings = config.finetuning
    most = FEW_LABELS_EPOCHS[settings.head_start]
    epochs = max(settings.epochs, min(most, settings.epochs * rows // count))
    changes = {"epochs": epochs, "max_train_examples": count, "grid": None}
    return config.model_copy(update={"finetuning": settings.model_copy(update=changes)})


def list_label_counts(config: PipelineConfig) -> list[int]:
    """Return the numbers of labels below all of them, the fewest first."""
    return sorted(count for count in config.finetuning.label_counts or () if count != "all")


def train_label_counts(
    starts: Mapping[str, PipelineConfig],
    tokenizer: Tokenizer,
    data: TaskData,
    work: Path,
    make_runs: Callable[..., TaskRuns],
) -> None:
    """Train each start once per seed on each number of labels, and write `label-counts.json`.

    It holds kind, main_metric and rows, the fewest labels first. Each row has labels, epochs and runs: start → a list
    of seed, score, dev_scores (of each evaluation), seconds, and failure if a run met NaN or infinity. The last row has
    the runs on all labels, those in `<start>/seed-<n>/`. For the others, `label-counts/<labels>/<start>/seed-<n>/`
    keeps `run.json` and the log, but no model.

    Args:
        starts: start → the configuration of its runs on all labels, which are already trained.
        tokenizer: of the model.
        data: all data of the task.
        work: folder of the runs.
        make_runs: `TaskRuns` with all arguments but the configuration; it is given other `data`.
    """
    first = next(iter(starts.values()))
    settings, examples = first.finetuning, read_training(first, data.task)[0]
    rows = []
    for count in list_label_counts(next(iter(starts.values()))):
        features = data.task.encode(tokenizer, examples[:count], settings.sequence_length)
        few, folder = replace(data, train=features), work / FOLDER / str(count)
        counted = {start: with_labels(config, count, len(examples)) for start, config in starts.items()}
        found: dict[str, list[dict[str, Any]]] = {}
        for start, config in counted.items():
            runs, found[start] = make_runs(config, data=few), []
            for seed in config.finetuning.seeds:
                place = folder / start / f"seed-{seed}"
                runs.finish(place, start, seed, may_fail=True, prefix=f"{count:,} labels, ")
                shutil.rmtree(place / MODEL, ignore_errors=True)  # only its scores are needed
                found[start].append(_describe_counts(place, data))
            del runs
            gc.collect()  # Keras models are part of reference cycles; the next one takes as much memory again
        epochs = {start: config.finetuning.epochs for start, config in counted.items()}
        rows.append({"labels": count, "epochs": epochs, "runs": found})
    everything = {
        start: [_describe_counts(work / start / f"seed-{seed}", data) for seed in config.finetuning.seeds]
        for start, config in starts.items()
    }
    epochs = {start: config.finetuning.epochs for start, config in starts.items()}
    rows.append({"labels": len(examples), "epochs": epochs, "runs": everything})
    curve = {"kind": data.task.kind, "main_metric": data.task.main_metric, "rows": rows}
    write_atomically(work / CURVE_FILE, json.dumps(curve, indent=1).encode())


def _describe_counts(folder: Path, data: TaskData) -> dict[str, Any]:
    run, field = read_json_object(folder / RUN_FILE), f"dev_{data.task.main_metric}"
    found = {name: run[name] for name in ("seed", "score", "seconds", "failure") if name in run}
    return found | {"dev_scores": [line[field] for line in read_log(folder) if field in line]}


# The random-weights baseline: trained until it stops improving, once for all models of one shape.

WEIGHTS = ".safetensors"
# Settings of `finetuning` that decide which runs there are, not what one is; and those that a grid chooses.
ABOUT_OTHERS = ("seeds", "compare_random", "compare_initial", "label_counts")
REUSED = "reused_from"  # field of `run.json`
CHOSEN = ("learning_rate", "epochs", "batch_size", "accumulate_batches")

_logger = logging.getLogger(__name__)


def with_random_training(config: PipelineConfig) -> PipelineConfig:
    """Return the configuration of runs from random weights.

    They learn more slowly than pre-trained weights, so the number of fine-tuning epochs would not suffice. They have up
    to `random_max_epochs`, stop when neither the dev score nor the dev loss has improved for `random_patience_epochs`,
    and publish the model with the best dev score, which errs in their favour. All their weights are trained, since
    frozen random weights would be no baseline, and on the labels, without a teacher. All other settings are those of
    the pre-trained model. With a grid, all of its learning rates and batch sizes are tried as well.
    """
    settings = config.finetuning
    epochs = max(settings.random_max_epochs, *(settings.grid.epochs if settings.grid else (settings.epochs,)))
    grid = settings.grid and settings.grid.model_copy(update={"epochs": (epochs,)})
    changes = {"epochs": epochs, "patience_epochs": settings.random_patience_epochs, "publish": "best", "grid": grid}
    changes |= {"frozen_layers": None, "lora_rank": None, "lora_output": MERGED, "teacher": None, "layer_epochs": 0}
    return config.model_copy(update={"finetuning": settings.model_copy(update=changes)})


def baseline_key(identity: Mapping[str, Any]) -> str:
    """Return the content key of runs from random weights, of whose model everything but the weights counts.

    Args:
        identity: see `finetuning_identity`.
    """
    facts = json.loads(canonical_json(identity))
    settings, files = facts.pop("finetuning"), facts.pop("model")
    left_out = {*ABOUT_OTHERS, *CHOSEN} - {"seeds"} if settings["grid"] else {*ABOUT_OTHERS}
    facts |= {"finetuning": {name: value for name, value in settings.items() if name not in left_out}}
    files = {name: digest for name, digest in files.items() if not name.endswith(WEIGHTS)}
    return content_key("random baseline", facts, files, facts[REVISION])


def reuse_baseline(config: PipelineConfig, results: Path, work: Path, identity: Mapping[str, Any]) -> None:
    """Copy the runs from random weights that another result has, so that another pre-training does not repeat them.

    Training them again would give the same bytes. What is damaged is passed over.

    Args:
        config: of the runs, as `with_random_training` returns it.
        results: the folder of the published results.
        work: gets `random/seed-<n>/`; with a grid all of them, `grid-random/` and last of all `grid-random.json`. What
            is already there stays.
        identity: of the runs.
    """
    key, grid = baseline_key(identity), GRIDS[RANDOM]
    folders = [f"seed-{seed}" for seed in config.finetuning.seeds]
    for result in sorted(results.glob("[!.]*")):
        found = [name for name in folders if _has_key(result, name, key)]
        if config.finetuning.grid is not None and found != folders:
            continue
        wanted = [f"{RANDOM}/{name}" for name in found]
        if config.finetuning.grid is not None:
            wanted += [grid, f"{grid}.json"]
        wanted = [name for name in wanted if not (work / name).exists()]
        if not wanted:
            continue
        try:
            check_folder(result, "finetuning")
        except (OSError, ValueError) as error:
            _logger.warning(
                "Runs from random weights are trained again, since those of %s are damaged: %s", result, error
            )
            continue
        for name in wanted:
            _copy(result, work, name, identity)
        _logger.info("Runs from random weights are those of %s: %s.", result, ", ".join(wanted))


def _has_key(result: Path, name: str, key: str) -> bool:
    """Return whether the random weights of an earlier result were trained with the settings and inputs of a key."""
    try:
        identity = read_json_object(result / RANDOM / name / RUN_FILE)["identity"]
        if REVISION not in identity:  # made by an earlier version; a revision in the manifest then says which it equals
            identity = drop_earlier(identity) | {REVISION: read_manifest(result).revision}
        return baseline_key(identity) == key
    except (OSError, ValueError, KeyError, AttributeError):
        return False


def _copy(result: Path, work: Path, name: str, identity: Mapping[str, Any]) -> None:
    """Copy a file or a folder whole or not at all; a run gets the identity of those that it is now one of."""
    part = work / f".{name.replace('/', '-')}.part"
    if (result / name).is_file():
        shutil.copyfile(result / name, part)
    else:
        shutil.rmtree(part, ignore_errors=True)
        shutil.copytree(result / name, part)
    if (part / RUN_FILE).is_file():
        run = read_json_object(part / RUN_FILE)
        settings = {name: run["identity"]["finetuning"][name] for name in CHOSEN}
        now = {**identity, "finetuning": {**identity["finetuning"], **settings}}
        run |= {"identity": now, REUSED: str(result)}
        (part / RUN_FILE).write_text(json.dumps(run))
    (work / name).parent.mkdir(parents=True, exist_ok=True)
    os.replace(part, work / name)
