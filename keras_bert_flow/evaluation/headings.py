"""Names and number formats of what is in `metrics.json`: shares in percent, others as they are."""

from collections.abc import Mapping
from typing import Any

from keras_bert_flow.tasks.registry import find_task_class

MODEL_NAMES = {
    "random": "random weights",
    "initial": "initial embeddings, no pre-training steps",
    "pretrained": "pre-trained",
}
SHARE = " %"  # ends the heading of a share


def name_metric(kind: str, metric: str) -> str:
    """Return the heading of a metric of a kind of task."""
    return find_task_class(kind).headings.get(metric, metric)


def name_word_baseline(kind: str) -> str | None:
    """Return the name of the TF-IDF baseline; None if the kind has none."""
    return find_task_class(kind).word_baseline


def name_models(results: Mapping[str, Any]) -> dict[str, str]:
    """Return the models of the results and their names, in the order of the rows."""
    task = results["task"]
    names = {"baseline": task["baseline"], "tfidf": name_word_baseline(task["kind"])} | MODEL_NAMES
    return {model: name for model, name in names.items() if model in results["models"]}


def shown_metrics(results: Mapping[str, Any]) -> dict[str, str]:
    """Return the metrics to show and their headings, the main one first."""
    main, headings = main_metric(results), find_task_class(results["task"]["kind"]).headings
    found = {name: heading for name, heading in headings.items() if name in results["models"]["pretrained"]}
    return {main: headings.get(main, main)} | found


def main_metric(results: Mapping[str, Any]) -> str:
    """Return the metric by which the runs are compared."""
    return results["task"]["main_metric"]


def format_metric(value: float, heading: str) -> str:
    """Format a share in percent; correlations and errors unchanged, as is usual in the field."""
    return f"{100 * value:.1f}" if heading.endswith(SHARE) else f"{value:.3f}"


def format_spread(summary: Mapping[str, float], heading: str) -> str:
    """Format mean ± standard deviation; the deviation only if runs differ."""
    spread = f" ± {format_metric(summary['standard_deviation'], heading)}" if summary["standard_deviation"] > 0 else ""
    return format_metric(summary["mean"], heading) + spread
