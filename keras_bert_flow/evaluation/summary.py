"""Say what the results mean: one sentence, and one small table in text or Markdown."""

from collections.abc import Mapping
from typing import Any

MODEL_NAMES = {"majority": "majority class", "random": "random weights", "pretrained": "pre-trained"}
METRIC_NAMES = {"accuracy": "accuracy %", "f1": "macro F1 %", "f1_positive": "class 1 F1 %", "matthews": "Matthews"}


def results_markdown(results: Mapping[str, Any]) -> str:
    """Write the result table in Markdown, for Prefect's interface."""
    header, *rows = result_rows(results)
    ruler = ["---"] + ["---:"] * (len(header) - 1)
    return "\n".join("| " + " | ".join(row) + " |" for row in (header, ruler, *rows))


def results_text(results: Mapping[str, Any]) -> str:
    """Write the result table in aligned plain text, for the terminal."""
    rows = result_rows(results)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows
    )


def result_rows(results: Mapping[str, Any]) -> list[list[str]]:
    """Lay out the result table: a header row, then a row a model."""
    models = results["models"]
    metrics = [metric for metric in METRIC_NAMES if metric in models["pretrained"]]
    header = ["model", *(METRIC_NAMES[metric] for metric in metrics), "runs"]
    rows = [
        [
            MODEL_NAMES[name],
            *(format_spread(models[name][metric], metric) for metric in metrics),
            count_runs(models[name]),
        ]
        for name in MODEL_NAMES
        if name in models
    ]
    return [header, *rows]


def format_spread(summary: Mapping[str, float], metric: str) -> str:
    """Write mean ± standard deviation; the deviation only where runs differ."""
    spread = f" ± {format_metric(summary['standard_deviation'], metric)}" if summary["standard_deviation"] > 0 else ""
    return format_metric(summary["mean"], metric) + spread


def format_metric(value: float, metric: str) -> str:
    """Write a share in percent, and Matthews, which may be negative, as the field does, -1 to 1."""
    return f"{value:.3f}" if metric == "matthews" else f"{100 * value:.1f}"


def count_runs(model: Mapping[str, Any]) -> str:
    """Write how many runs a summary stands on, and how many of them collapsed; the majority class is no run."""
    seeds = [run for run in model["runs"] if run["seed"] is not None]
    collapsed = sum(run["collapsed"] for run in seeds)
    return (str(len(seeds)) if seeds else "-") + (f" ({collapsed} collapsed)" if collapsed else "")


def verdict(results: Mapping[str, Any]) -> str:
    """Say in one sentence what pre-training bought on this task, and whether the runs allow to say so."""
    models = results["models"]
    pretrained, majority = models["pretrained"]["accuracy"], models["majority"]["accuracy"]
    over = pretrained["mean"] - majority["mean"]
    baseline = f"{_points(over)} {'over' if over >= 0 else 'under'} the majority class ({_percent(majority)})"
    reached = f"fine-tuned from pre-trained weights the model reaches {_percent(pretrained)}, {baseline}"
    if "random" not in models:
        return f"On {results['task']['name']}, {reached}; random weights were not compared."
    random = models["random"]["accuracy"]
    gain = pretrained["mean"] - random["mean"]
    bought = (
        f"Pre-training {'gained' if gain >= 0 else 'lost'} {_points(gain)} of accuracy on {results['task']['name']}"
    )
    return f"{bought}: {reached}, against {_percent(random)} from random weights; {_doubt(models)}."


def _doubt(models: Mapping[str, Any]) -> str:
    compared = [models[name] for name in ("pretrained", "random")]
    if min(len(model["runs"]) for model in compared) == 1:
        return "a single run shows no spread, so this may be chance"
    lowest = max(model["accuracy"]["minimum"] for model in compared)
    highest = min(model["accuracy"]["maximum"] for model in compared)
    return "their runs overlap, so this may be chance" if lowest <= highest else "their runs do not overlap"


def _percent(summary: Mapping[str, float]) -> str:
    return f"{format_spread(summary, 'accuracy')}%"


def _points(difference: float) -> str:
    return f"{100 * abs(difference):.1f} points"
