"""Section `matrix`: one configuration, many runs."""

import itertools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import Field, model_validator

from keras_bert_flow.config.limits import MOST_PROCESSES
from keras_bert_flow.config.settings import Settings

MOST_CELLS = 256
NOT_VARIED = ("matrix", "runs", "name")
ONE_RUN = "matrix=null"  # the override that makes one run of a configuration with a matrix
MAX_LABEL = 80  # characters of a value in a label


class MatrixConfig(Settings):
    """The runs of a configuration: each entry of `variants` with each combination of `over`."""

    over: dict[str, tuple[Any, ...]] = Field(
        default_factory=dict,
        description="Setting → values to try, such as `backend: [jax, torch]`; a section is a value "
        "too, such as each of several tasks.",
    )
    variants: tuple[dict[str, Any], ...] = Field(
        (), description="Groups of settings that change together, such as a family and the objective of its records."
    )
    at_once: int = Field(1, ge=1, le=MOST_PROCESSES, description="Maximum number of concurrent runs.")

    @model_validator(mode="after")
    def _check_names(self):
        for name in itertools.chain(self.over, *self.variants):
            if name.split(".")[0] in NOT_VARIED:
                raise ValueError(f"A matrix must not change `{name}`. Received: {name}. Leave it out.")
        for name, values in self.over.items():
            if not values:
                raise ValueError(f"A matrix must have a value of each setting. Received: none of `{name}`. Give some.")
        return self


@dataclass(frozen=True)
class Cell:
    """One run of a matrix.

    Attributes:
        label: what sets it apart, such as `backend=torch, task=SST-2`.
        overrides: `key.sub=value` settings that make it of the configuration.
        names: of the settings that they change.
    """

    label: str
    overrides: tuple[str, ...]
    names: tuple[str, ...]


def list_cells(matrix: MatrixConfig) -> list[Cell]:
    """Return the runs of a matrix, in the order of the file.

    Raises:
        ValueError: there are none, or too many, or two are the same.
    """
    variants = matrix.variants or ({},)
    count = len(variants) * math.prod(map(len, matrix.over.values())) if matrix.over or matrix.variants else 0
    if not 1 <= count <= MOST_CELLS:
        raise ValueError(
            f"`matrix` must have from 1 to {MOST_CELLS} runs. Received: {count:,}. Give `over` or `variants` values."
        )
    combinations = itertools.product(*([(name, value) for value in values] for name, values in matrix.over.items()))
    chosen = [variant | dict(combination) for variant, combination in itertools.product(variants, combinations)]
    cells = [Cell(_label(settings), _write_overrides(settings), tuple(settings)) for settings in chosen]
    labels = [cell.label for cell in cells]
    if repeated := [label for label in labels if labels.count(label) > 1]:
        raise ValueError(
            f"The runs of a matrix must differ. Received: {repeated[0]}, twice. Give each section a `name` of its own."
        )
    return cells


def _write_overrides(settings: Mapping[str, Any]) -> tuple[str, ...]:
    # a section comes before a setting inside it, which would be lost with the section it replaces
    return *(f"{name}={json.dumps(settings[name])}" for name in sorted(settings, key=len)), ONE_RUN


def _label(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={_name_value(value)}" for name, value in settings.items())


def _name_value(value: Any) -> str:
    if isinstance(value, Mapping) and isinstance(value.get("name"), str):
        return value["name"]
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= MAX_LABEL else f"{text[:MAX_LABEL]}…"
