"""The search space: parsed from options, checked by the configuration's own rules, and sampled."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import optuna

from keras_bert_flow.config.loading import make_config
from keras_bert_flow.config.tuning import Dimension, TuningConfig
from keras_bert_flow.yaml_documents import parse_yaml

INNER_SHARE = 0.618  # of a range: gives a fractional value, which no integer setting accepts
# Settings of storage and monitoring, which the search sets itself or which do not affect the objective.
NOT_SEARCHED = ("tuning", "runs", "name", "loggers", "beam", "distribution", "backend", "evaluation")
SEARCHES = ("finetuning.grid", "finetuning.label_counts", "finetuning.compare_random")


def read_dimension(option: str) -> tuple[str, dict[str, Any]]:
    """Parse `setting=low..high`, `setting=low..high:log` or `setting=a,b,c`.

    Raises:
        ValueError: `option` has none of these forms.
    """
    name, _, text = option.partition("=")
    bounds, colon, scale = text.partition(":")
    low, dots, high = bounds.partition("..")
    try:
        if not (name and text) or (dots and colon and scale != "log"):
            raise ValueError("neither")
        if not dots:
            return name, {"choices": parse_yaml(f"[{text}]")}
        return name, {"low": parse_yaml(low), "high": parse_yaml(high), "log": bool(colon)}
    except ValueError:
        raise ValueError(
            f"--space must read setting=low..high, setting=low..high:log or setting=a,b,c. Received: {option}. "
            "Try --space finetuning.learning_rate=1e-5..1e-3:log"
        ) from None


def read_tuning(tuning: TuningConfig | None, options: Sequence[str], trials: int | None) -> TuningConfig:
    """Return the section `tuning`, overridden by command-line options.

    Raises:
        ValueError: there is no search space, or a range or number is invalid.
    """
    values = (tuning or TuningConfig()).model_dump(exclude_unset=True)
    values["space"] = dict(values.get("space", {}))
    for option in options:
        name, dimension = read_dimension(option)
        values["space"][name] = dimension
    read = make_config(TuningConfig, values | ({} if trials is None else {"trials": trials}), "tuning")
    if not read.space:
        raise ValueError(
            "A search must have a space. Received: neither `tuning.space` nor --space. "
            "Try --space finetuning.learning_rate=1e-5..1e-3:log"
        )
    return read


def check_space(tuning: TuningConfig, objective: str, load: Callable[[Sequence[str]], Any]) -> None:
    """Check that the configuration accepts the search space: each setting at and within its bounds, and each choice.

    Args:
        objective: the objective of the search.
        load: loads the configuration with `setting=value` overrides, and raises ValueError for an invalid one.
    Raises:
        ValueError: a setting is unknown, does not accept a value, or does not affect the objective.
    """
    for name, dimension in tuning.space.items():
        is_of_task = name.split(".")[0] in ("task", "finetuning")
        if name.split(".")[0] in NOT_SEARCHED or name in SEARCHES or (is_of_task and objective == "held_out_loss"):
            raise ValueError(
                f"A search must be over settings that change its objective. Received: {name}, with {objective}. "
                "Leave it out."
            )
        for value in _list_edges(dimension):
            load([write_override(name, value)])


def draw(trial: optuna.Trial, space: Mapping[str, Dimension]) -> dict[str, Any]:
    """Sample a value for each setting; a choice that Optuna cannot store, such as a list, is stored as JSON."""
    return {name: _draw(trial, name, dimension) for name, dimension in space.items()}


def write_overrides(values: Mapping[str, Any]) -> list[str]:
    """Format sampled values for `--set`."""
    return [write_override(name, value) for name, value in values.items()]


def write_override(name: str, value: Any) -> str:
    is_plain = isinstance(value, str) and parse_yaml(value) == value
    return f"{name}={value if is_plain else json.dumps(value)}"


def read_params(params: Mapping[str, Any], space: Mapping[str, Dimension]) -> dict[str, Any]:
    """Return the values of a stored trial's parameters, in the order of the space."""
    return {name: _find_choice(params[name], space[name]) for name in space if name in params}


def _draw(trial: optuna.Trial, name: str, dimension: Dimension) -> Any:
    if dimension.choices is not None:
        return _find_choice(trial.suggest_categorical(name, [*map(_store, dimension.choices)]), dimension)
    low, high = dimension.bounds
    if dimension.is_whole:
        return trial.suggest_int(name, int(low), int(high), log=dimension.log)
    return trial.suggest_float(name, float(low), float(high), log=dimension.log)


def _store(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list | tuple | dict) else value


def _find_choice(stored: Any, dimension: Dimension) -> Any:
    if dimension.choices is None:
        return stored
    return next(value for value in dimension.choices if _store(value) == stored)


def _list_edges(dimension: Dimension) -> Sequence[Any]:
    if dimension.choices is not None:
        return dimension.choices
    low, high = dimension.bounds
    return (low, high) if dimension.is_whole else (float(low), low + (high - low) * INNER_SHARE, float(high))
