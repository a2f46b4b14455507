"""Grid search over learning rates, epochs and batch sizes, selected on the dev table."""

import gc
import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from keras_bert_flow.artifacts import write_atomically
from keras_bert_flow.config.finetuning import GridConfig
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.json_documents import read_json_object
from keras_bert_flow.tasks.core.metrics import summarise_runs
from keras_bert_flow.tasks.core.task import Task
from keras_bert_flow.training.finetuning.task_runs import MODEL, PRETRAINED, RANDOM, TaskRuns

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

    def settle(self, config: PipelineConfig) -> PipelineConfig:
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
    make_runs: Callable[[PipelineConfig], TaskRuns],
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
            are trained: kind, main_metric, chosen (a name) and points, each a row of `_describe`, the cheapest first.
            For random weights these are `grid-random` and `grid-random.json`.
        make_runs: makes the runs of a configuration.
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
    return Point(**{field.name: chosen[field.name] for field in fields(Point)}).settle(config)


def _train_points(config: PipelineConfig, folder: Path, make_runs, start: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for point in list_points(config.finetuning.grid or GridConfig()):
        rows.append(_describe(point, list(_train_point(point.settle(config), folder / point.name, make_runs, start))))
        best = find_best(rows)
        for row in rows:  # at most one point keeps its models, to save disk space
            if row is not best:
                for model in (folder / row["name"]).glob(f"seed-*/{MODEL}"):
                    shutil.rmtree(model)
        gc.collect()  # Keras models are part of reference cycles; the next one takes as much memory again
    return rows


def _train_point(config: PipelineConfig, folder: Path, make_runs, start: str) -> Iterator[dict[str, Any]]:
    runs = make_runs(config)
    for seed in config.finetuning.seeds:
        run = runs.finish(folder / f"seed-{seed}", start, seed, may_fail=True)
        yield {name: run[name] for name in ("seed", "score", "seconds", "failure") if name in run}
        if run["score"] is None:
            return


def _describe(point: Point, runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return a row: name, settings, score (mean, standard_deviation, minimum, maximum; null on NaN), seconds, runs."""
    has_failed = any(run["score"] is None for run in runs)
    score = None if has_failed else summarise_runs([{"score": run["score"]} for run in runs])["score"]
    seconds = None if has_failed else round(sum(run["seconds"] for run in runs), 1)
    return {"name": point.name, **asdict(point), "score": score, "seconds": seconds, "runs": list(runs)}
