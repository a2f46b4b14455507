"""Settings and scores of results: flattened to dotted names, compared, and as command-line options."""

import json
from collections.abc import Mapping
from typing import Any

from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.json_documents import read_json_object
from keras_bert_flow.lineage.results import Result
from keras_bert_flow.records.results import is_measurement

SCORES = "metrics.json"  # of pre-training, distillation and evaluation
RUNS = "run.json"  # of each model of a fine-tuning
MOVED = {"cased": "vocabulary.cased", "seed": "seed"}  # settings in the manifest of records from other sections
NOT_SETTINGS = {"name", "runs", "loggers", "tuning", "vocabulary.vocabulary_size", "records.vocabulary_size"}
Flat = dict[str, Any]


def flatten(values: Mapping[str, Any], prefix: str = "") -> Flat:
    """Flatten nested values to dotted names; lists are not flattened."""
    flat: Flat = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def read_settings(result: Result) -> Flat:
    """Return the settings in a manifest, by their names in a configuration."""
    config = result.manifest.config if result.manifest else {}
    if result.stage not in PipelineConfig.model_fields or result.stage in config:
        return flatten(config)
    own = {name: value for name, value in config.items() if name not in MOVED or name in _fields(result.stage)}
    moved = {MOVED[name]: value for name, value in config.items() if name not in own}
    return flatten({result.stage: own}) | moved


def read_scores(result: Result) -> Flat:
    """Return the scores in the files of a whole result, and the counters of its manifest, without measurements.

    Raises:
        OSError, ValueError: a file that the manifest lists cannot be read.
    """
    if result.manifest is None or result.state != "whole":
        return {}
    scores = flatten(result.manifest.counters)
    for file in result.manifest.files:
        name = file.name.rpartition("/")[2]
        if file.name == SCORES:
            scores |= flatten(read_json_object(result.folder / file.name))
        elif name == RUNS:
            score = read_json_object(result.folder / file.name).get("score")
            scores |= {} if score is None else {f"{file.name.removesuffix(f'/{RUNS}')} score": score}
    return {name: value for name, value in scores.items() if not is_measurement(name.rpartition(".")[2])}


def list_changed(result: Result) -> Flat:
    """Return the non-default settings, as an option `--set` takes them."""
    defaults = flatten(PipelineConfig().model_dump(mode="json"))
    settings = read_settings(result)
    known = {name: value for name, value in settings.items() if name.split(".")[0] in PipelineConfig.model_fields}
    return {name: value for name, value in known.items() if name not in NOT_SETTINGS and defaults.get(name) != value}


def list_differences(first: Flat, second: Flat) -> list[tuple[str, Any, Any]]:
    """Return (name, first value, second value) for values that differ; None if one lacks the name."""
    names = sorted(first.keys() | second.keys())
    return [(name, first.get(name), second.get(name)) for name in names if first.get(name) != second.get(name)]


def as_yaml(value: Any) -> str:
    """Format a value for `--set`."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _fields(section: str) -> set[str]:
    annotation: Any = PipelineConfig.model_fields[section].annotation
    return {*annotation.model_fields}
