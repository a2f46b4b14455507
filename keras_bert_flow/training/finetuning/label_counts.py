"""Learning curve: train a task on subsets of its labels, from both starts, since pre-training helps most with few."""

import gc
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from keras_bert_flow.artifacts import write_atomically
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.json_documents import read_json_object
from keras_bert_flow.text.tokenizers.tokenizer import Tokenizer
from keras_bert_flow.training.finetuning.task_data import TaskData, read_training
from keras_bert_flow.training.finetuning.task_runs import MODEL, RUN_FILE, TaskRuns
from keras_bert_flow.training.state.logs import read_log

FOLDER, CURVE_FILE = "label-counts", "label-counts.json"
# Maximum epochs on few examples, by head start: a random head needs many (Mosbach et al. 2021, arXiv:2006.04884); a
# fitted head is past its best by then (docs/results.md, "On SST-2, from 64 MB of film reviews").
FEW_LABELS_EPOCHS = {"random": 20, "probe": 5}

MakeRuns = Callable[[PipelineConfig, TaskData], TaskRuns]


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
    make_runs: MakeRuns,
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
        make_runs: makes the runs of a configuration on given data.
    """
    first = next(iter(starts.values()))
    settings, examples = first.finetuning, read_training(first, data.task)[0]
    rows = []
    for count in list_label_counts(next(iter(starts.values()))):
        features = data.task.encode(tokenizer, examples[:count], settings.sequence_length)
        few, folder = replace(data, train=features), work / FOLDER / str(count)
        counted = {start: with_labels(config, count, len(examples)) for start, config in starts.items()}
        found = {}
        for start, config in counted.items():
            runs = make_runs(config, few)
            name = f"{count:,} labels, "
            found[start] = [_train(runs, folder / start, start, seed, data, name) for seed in config.finetuning.seeds]
            del runs
            gc.collect()  # Keras models are part of reference cycles; the next one takes as much memory again
        rows.append({"labels": count, "epochs": _epochs(counted), "runs": found})
    everything = {
        start: [_describe(work / start / f"seed-{seed}", data) for seed in config.finetuning.seeds]
        for start, config in starts.items()
    }
    rows.append({"labels": len(examples), "epochs": _epochs(starts), "runs": everything})
    curve = {"kind": data.task.kind, "main_metric": data.task.main_metric, "rows": rows}
    write_atomically(work / CURVE_FILE, json.dumps(curve, indent=1).encode())


def _train(runs: TaskRuns, folder: Path, start: str, seed: int, data: TaskData, prefix: str) -> dict[str, Any]:
    place = folder / f"seed-{seed}"
    runs.finish(place, start, seed, may_fail=True, prefix=prefix)
    shutil.rmtree(place / MODEL, ignore_errors=True)  # only its scores are needed
    return _describe(place, data)


def _describe(folder: Path, data: TaskData) -> dict[str, Any]:
    run, field = read_json_object(folder / RUN_FILE), f"dev_{data.task.main_metric}"
    found = {name: run[name] for name in ("seed", "score", "seconds", "failure") if name in run}
    return found | {"dev_scores": [line[field] for line in read_log(folder) if field in line]}


def _epochs(starts: Mapping[str, PipelineConfig]) -> dict[str, int]:
    return {start: config.finetuning.epochs for start, config in starts.items()}
