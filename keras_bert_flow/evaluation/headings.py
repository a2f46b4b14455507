"""Name in words what `metrics.json` holds, and write its numbers: shares in percent, others as they are."""

from collections.abc import Mapping
from typing import Any

MODEL_NAMES = {"random": "random weights", "pretrained": "pre-trained"}
# Kind of task → its baseline without a network; see `tasks.baselines.word_baseline`.
WORD_BASELINES = {
    "classification": "TF-IDF with logistic regression",
    "multi_label": "TF-IDF with logistic regression",
    "regression": "TF-IDF with ridge regression",
}
SHARE = " %"  # ends the heading of a share

# Kind of task → metric → heading, in the order of the columns. Other metrics are in metrics.json only.
HEADINGS = {
    "classification": {
        "accuracy": "accuracy %",
        "f1": "macro F1 %",
        "f1_positive": "class 1 F1 %",
        "matthews": "Matthews correlation",
    },
    "regression": {
        "pearson": "Pearson correlation",
        "spearman": "Spearman correlation",
        "mse": "mean squared error",
    },
    "multi_label": {"f1_micro": "micro F1 %", "f1_macro": "macro F1 %", "exact_match": "exact match %"},
    "multiple_choice": {"accuracy": "accuracy %"},
    "sentence_embedding": {
        "mrr": "MRR@10",
        "accuracy": "partner found first %",
        "spearman": "Spearman correlation",
        "pearson": "Pearson correlation",
    },
    "token_classification": {
        "precision": "span precision %",
        "recall": "span recall %",
        "f1": "span F1 %",
        "accuracy": "accuracy of words %",
    },
    "question_answering": {
        "exact": "exact match %",
        "f1": "F1 of words %",
        "has_answer_f1": "F1, answerable %",
        "no_answer_f1": "F1, unanswerable %",
    },
}


def name_models(results: Mapping[str, Any]) -> dict[str, str]:
    """Return the models of the results and their names, in the order of the rows."""
    task = results["task"]
    names = {"baseline": task["baseline"], "tfidf": WORD_BASELINES.get(task["kind"])} | MODEL_NAMES
    return {model: name for model, name in names.items() if model in results["models"]}


def shown_metrics(results: Mapping[str, Any]) -> dict[str, str]:
    """Return the metrics to show and their headings, the main one first."""
    main, headings = main_metric(results), HEADINGS.get(results["task"]["kind"], {})
    found = {name: heading for name, heading in headings.items() if name in results["models"]["pretrained"]}
    return {main: headings.get(main, main)} | found


def main_metric(results: Mapping[str, Any]) -> str:
    """Return the metric by which the runs are compared."""
    return results["task"]["main_metric"]


def format_metric(value: float, heading: str) -> str:
    """Write a share in percent; correlations and errors as the field does, as they are."""
    return f"{100 * value:.1f}" if heading.endswith(SHARE) else f"{value:.3f}"


def format_spread(summary: Mapping[str, float], heading: str) -> str:
    """Write mean ± standard deviation; the deviation only where runs differ."""
    spread = f" ± {format_metric(summary['standard_deviation'], heading)}" if summary["standard_deviation"] > 0 else ""
    return format_metric(summary["mean"], heading) + spread
