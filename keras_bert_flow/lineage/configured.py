"""Find the model that the runs of a configuration have made, so that its file can stand for the model."""

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keras_bert_flow.config.loading import load_config
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.config.settings import BUILTIN
from keras_bert_flow.json_documents import read_json_object
from keras_bert_flow.lineage.links import list_sources
from keras_bert_flow.lineage.results import Result, find_results
from keras_bert_flow.local_paths import check_local

SUFFIXES = (".yaml", ".yml")
# Sections that decide what a model is.
COMPARED = ("corpus", "vocabulary", "records", "model", "pretraining", "task", "finetuning")
RUNS = "pretrained/seed-*/run.json"

_logger = logging.getLogger(__name__)


def is_configuration(path: str | Path) -> bool:
    """Return whether a path given as a model is that of a configuration."""
    return Path(path).suffix in SUFFIXES and not Path(path).is_dir()


def find_model(config: str | Path) -> Path:
    """Return the model directory of the newest finished run of a configuration, of the seed that is best on dev.

    A warning says which it is, and which sections of the configuration have changed since.

    Raises:
        FileNotFoundError: there is no such file, or no run of that `name` is finished.
        ValueError: the configuration is damaged.
    """
    settings = load_config(config)
    store = check_local(settings.runs)
    results = find_results(store) if store.is_dir() else []
    named = [result for result in results if result.stage == "evaluation" and _is_of(result, settings)]
    for report in sorted(named, key=lambda result: result.changed_at, reverse=True):
        finetuned = next((held for source in list_sources(report, results) for held in source.results
                          if source.name == "finetuned"), None)  # fmt: skip
        if finetuned is not None and (found := find_best(finetuned.folder)):
            best, score, count = found
            changed = _list_changes(settings, report)
            since = f", made with another {', '.join(changed)}" if changed else ""
            _logger.warning(
                "%s is %s, the best of %d on dev (%.4g)%s.",
                *(config, best, count, score, since),
            )
            return best
    raise FileNotFoundError(
        f"A configuration must have a finished run to stand for its model. Received: {config}, and none of "
        f"`name: {settings.name}` in {settings.runs}. kbf run {config}"
    )


def find_best(finetuned: Path) -> tuple[Path, float, int] | None:
    """Return the model of a fine-tuning that is best on dev, its score, and the number of models; None without one."""
    runs = {path.parent / "model": read_json_object(path) for path in finetuned.glob(RUNS)}
    runs = {model: run for model, run in runs.items() if (model / "config.json").is_file()}
    if not runs:
        return None
    best = max(runs, key=lambda model: (runs[model]["score"], -runs[model]["seed"]))
    return best, runs[best]["score"], len(runs)


def _is_of(result: Result, settings: PipelineConfig) -> bool:
    return (
        result.state == "whole" and result.manifest is not None and result.manifest.config.get("name") == settings.name
    )


def _list_changes(settings: PipelineConfig, report: Result) -> list[str]:
    """Return the sections in which a configuration differs from what a report was made with."""
    ours, theirs = settings.model_dump(mode="json"), report.manifest.config if report.manifest else {}
    return [name for name in COMPARED if name in theirs and not _are_same(ours.get(name), theirs[name])]


def _are_same(ours: Any, theirs: Any) -> bool:
    """Compare values, of which relative paths may have become absolute, and what is built in a path."""
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        return all(_are_same(ours[name], theirs[name]) for name in ours.keys() & theirs.keys())
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(_are_same, ours, theirs))
    if isinstance(ours, str) and isinstance(theirs, str):
        return ours in (theirs, BUILTIN) or os.path.abspath(ours) == theirs
    return ours == theirs or ours == [BUILTIN]
