"""Costs of each stage of a run, with its date and machine."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_bert_flow.evaluation.page import paragraph, table
from keras_bert_flow.records.costs import read_costs
from keras_bert_flow.records.manifest import read_manifest


def gather_costs(folders: Mapping[Path, float | None]) -> list[dict[str, Any]]:
    """Return the cost rows of the stages.

    Args:
        folders: folders of results, in the order of the run → seconds if the result itself has them, used if there are
            no recorded costs.
    Returns:
        In plain JSON values: stage, key, seconds; and, if costs are recorded, began, processor_seconds, peak_bytes,
        machine and parts, the number of processes that worked on it one after another.
    """
    rows = []
    for folder, seconds in folders.items():
        manifest, costs = read_manifest(folder), read_costs(folder)
        row: dict[str, Any] = {"stage": manifest.stage, "key": manifest.key, "seconds": seconds}
        if costs:
            row |= {
                "seconds": sum(cost.seconds for cost in costs),
                "processor_seconds": sum(cost.processor_seconds for cost in costs),
                "peak_bytes": max(cost.peak_bytes for cost in costs),
                "began": costs[0].began,
                "machine": " and ".join(dict.fromkeys(cost.machine for cost in costs)),
                "parts": len(costs),
            }
        rows.append(row)
    return rows


def describe_costs(stages: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the cost section of the report."""
    rows = [
        [
            stage["stage"],
            stage["key"],
            _write_date(stage),
            _write(stage.get("seconds"), ",.1f"),
            _write(stage.get("processor_seconds"), ",.1f"),
            _write(stage.get("peak_bytes", 0) / 1e6 or None, ",.0f"),
        ]
        for stage in stages
    ]
    header = ["stage", "content key", "began, UTC", "seconds", "processor seconds", "peak memory, MB"]
    kinds = ["", "code", "", "number", "number", "number"]
    machines: dict[str, list[str]] = {}
    for stage in stages:
        if stage.get("machine"):
            machines.setdefault(stage["machine"], []).append(stage["stage"])
    made = [f"{', '.join(dict.fromkeys(names))}: {machine}" for machine, names in machines.items()]
    note = "Seconds of the work itself, without the start of its process; memory of the largest process."
    return [table(header, rows, kinds), paragraph("; ".join(made) + ". " + note if made else "", "note")]


def summarise_costs(stages: Sequence[Mapping[str, Any]], backend: str) -> str:
    """Return one line on when, where and how long the run was made; empty if no costs are recorded."""
    noted = [stage for stage in stages if stage.get("began")]
    if not noted:
        return ""
    last, machines = max(stage["began"] for stage in noted), dict.fromkeys(stage["machine"] for stage in noted)
    minutes, seconds = divmod(round(sum(stage["seconds"] or 0.0 for stage in stages)), 60)
    hours, minutes = divmod(minutes, 60)
    parts = [f"{hours} h"] * (hours > 0) + [f"{minutes} min"] * (hours + minutes > 0) + [f"{seconds} s"]
    return f"{last[:10]}, {backend} on {' and '.join(machines)}: {' '.join(parts)} in all stages."


def _write_date(stage: Mapping[str, Any]) -> str:
    began = stage.get("began", "").replace("T", " ")[:16]
    return f"{began}, in {stage['parts']} parts" if stage.get("parts", 1) > 1 else began


def _write(value: float | None, spec: str) -> str:
    return "" if value is None else format(value, spec)
