"""Say what the results mean: one sentence, and one small table in text or Markdown."""

from collections.abc import Mapping, Sequence
from typing import Any

from keras_bert_flow.evaluation.headings import (
    SHARE,
    format_metric,
    format_spread,
    main_metric,
    name_models,
    shown_metrics,
)
from keras_bert_flow.markdown import as_markdown, escape_markdown
from keras_bert_flow.tasks.unreachable import describe_unreachable
from keras_bert_flow.terminal import JOINERS, escape_controls


def results_markdown(results: Mapping[str, Any]) -> str:
    """Write the result table in Markdown, for Prefect's interface."""
    return as_markdown(result_rows(results))


def results_text(results: Mapping[str, Any]) -> str:
    """Write the result table in aligned plain text, for the terminal."""
    return align(result_rows(results))


def extra_results(results: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the results on each further dev file, as if it were the one, for the tables here."""
    extra = results.get("extra_dev", {})
    return {name: {"task": results["task"], "models": found["models"]} for name, found in extra.items()}


def unreachable_markdown(results: Mapping[str, Any]) -> str:
    """Write the labels that no model can give as a list in Markdown, an item per file."""
    found = results["unreachable"].items()
    return "\n".join(
        ["Labels out of reach:", "", *(f"- {escape_markdown(describe_unreachable(*item))}" for item in found)]
    )


def align(rows: Sequence[Sequence[str]]) -> str:
    """Write rows in aligned plain text, a line each; all but the first column to the right."""
    rows = [[escape_controls(cell, JOINERS) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows
    )


def result_rows(results: Mapping[str, Any]) -> list[list[str]]:
    """Lay out the result table: a header row, then a row a model."""
    models, metrics = results["models"], shown_metrics(results)
    header = ["model", *metrics.values(), "runs"]
    rows = [
        [
            name,
            *(format_spread(models[model][metric], heading) for metric, heading in metrics.items()),
            count_runs(models[model]),
        ]
        for model, name in name_models(results).items()
    ]
    return [header, *rows]


def count_runs(model: Mapping[str, Any]) -> str:
    """Write how many runs a summary stands on, and how many of them collapsed; the baseline is no run."""
    seeds = [run for run in model["runs"] if run["seed"] is not None]
    collapsed = sum(run["collapsed"] for run in seeds)
    return (str(len(seeds)) if seeds else "-") + (f" ({collapsed} collapsed)" if collapsed else "")


def verdict(results: Mapping[str, Any]) -> str:
    """Say in one sentence what pre-training bought on this task, and whether the runs allow to say so."""
    metric, heading = main_metric(results), shown_metrics(results)[main_metric(results)]
    task, noun = results["task"]["name"], heading.removesuffix(SHARE)
    models = {name: model[metric] for name, model in results["models"].items()}
    over = models["pretrained"]["mean"] - models["baseline"]["mean"]
    baseline = f"the {results['task']['baseline']} ({_write(models['baseline'], heading)})"
    reached = (
        f"fine-tuned from pre-trained weights the model reaches {_write(models['pretrained'], heading)}, "
        f"{_distance(over, heading)} {'over' if over >= 0 else 'under'} {baseline}"
    )
    if "random" not in models:
        return f"By {noun} on {task}, {reached}; random weights were not compared."
    gain = models["pretrained"]["mean"] - models["random"]["mean"]
    bought = f"Pre-training {'gained' if gain >= 0 else 'lost'} {_distance(gain, heading)} of {noun} on {task}"
    return f"{bought}: {reached}, against {_write(models['random'], heading)} from random weights; {_doubt(results)}."


def interval_sentence(results: Mapping[str, Any]) -> str:
    """Say how far the main metric of one run would move on other examples; nothing where no draw moved it."""
    interval = results["interval"]
    if interval["low"] == interval["high"]:  # as where all are right, which does not make the score certain
        return ""
    heading = shown_metrics(results)[main_metric(results)]
    low, high = (format_metric(interval[end], heading) for end in ("low", "high"))
    unit = "%" if heading.endswith(SHARE) else ""
    return (
        f"On other dev examples of the same kind, the {heading.removesuffix(SHARE)} of the run with seed "
        f"{interval['seed']} from pre-trained weights would lie between {low}{unit} and {high}{unit} "
        f"({interval['level']:.0%} bootstrap interval, {interval['resamples']:,} resamples)."
    )


def _doubt(results: Mapping[str, Any]) -> str:
    compared = [results["models"][name] for name in ("pretrained", "random")]
    if min(len(model["runs"]) for model in compared) == 1:
        return "a single run shows no spread, so this may be chance"
    metric = main_metric(results)
    lowest = max(model[metric]["minimum"] for model in compared)
    highest = min(model[metric]["maximum"] for model in compared)
    return "their runs overlap, so this may be chance" if lowest <= highest else "their runs do not overlap"


def _write(summary: Mapping[str, float], heading: str) -> str:
    return format_spread(summary, heading) + ("%" if heading.endswith(SHARE) else "")


def _distance(difference: float, heading: str) -> str:
    return format_metric(abs(difference), heading) + (" points" if heading.endswith(SHARE) else "")
