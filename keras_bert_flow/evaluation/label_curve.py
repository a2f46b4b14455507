"""Label curve: a table and a figure of scores by number of labels, for pre-trained, random weights and TF-IDF."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_bert_flow.evaluation.convergence import is_improving
from keras_bert_flow.evaluation.curves import Panel, Series
from keras_bert_flow.evaluation.headings import (
    MODEL_NAMES,
    SHARE,
    format_metric,
    format_spread,
    name_metric,
    name_word_baseline,
)
from keras_bert_flow.json_documents import read_json_object
from keras_bert_flow.markdown import as_markdown
from keras_bert_flow.tasks.baselines.word_baseline import answer_from_words
from keras_bert_flow.tasks.core.metrics import summarise_runs
from keras_bert_flow.tasks.core.task import Task

CURVE_FILE = "label-counts.json"
MODELS = ("tfidf", "random", "pretrained")
NOTE = (
    "Each row is trained on the first so many rows of the training table and scored on the dev set, mean ± standard "
    "deviation over the seeds."
)


def build_label_curve(
    finetuned: Path, task: Task, training: Sequence[Any], dev: Sequence[Any], seed: int
) -> dict[str, Any] | None:
    """Collect the scores on fewer labels, including those of TF-IDF; None if fine-tuning had no `label_counts`.

    Args:
        finetuned: folder made by `finetune`.
        task: with the labels of the training examples.
        training: all training examples.
        dev: the examples that are scored.
        seed: see `answer_from_words`.
    Returns:
        kind, main_metric, and rows, fewest labels first: labels, epochs, and for each model mean, standard_deviation,
        minimum, maximum, runs and improving, a count.
    Raises:
        ValueError: the file is damaged.
    """
    path = finetuned / CURVE_FILE
    if not path.is_file():
        return None
    curve = read_json_object(path)
    try:
        rows = [_summarise_row(row, curve["main_metric"], len(dev)) for row in curve["rows"]]
        facts = {name: curve[name] for name in ("kind", "main_metric")}
    except (LookupError, TypeError, ValueError, AttributeError):
        raise ValueError(
            f"A label curve must have all of its fields. Received: {path}, damaged. Fine-tune again."
        ) from None
    for row in rows:
        words = answer_from_words(task, training[: row["labels"]], {"dev": dev}, seed)
        if words is not None:
            score = task.score(dev, words.predictions["dev"])[task.main_metric]
            row["tfidf"] = summarise_runs([{"score": score}])["score"] | {"runs": 1, "improving": 0}
    return facts | {"rows": rows}


def _summarise_row(row: Mapping[str, Any], metric: str, dev_examples: int) -> dict[str, Any]:
    models = {}
    for model, runs in row["runs"].items():
        scores = [{"score": run["score"]} for run in runs if run["score"] is not None]
        improving = sum(bool(is_improving(run["dev_scores"], metric, dev_examples)) for run in runs)
        summary = summarise_runs(scores)["score"] if len(scores) == len(runs) else None
        models[model] = summary and summary | {"runs": len(runs), "improving": improving}
    return {"labels": int(row["labels"]), "epochs": row["epochs"], **models}


def curve_rows(curve: Mapping[str, Any]) -> list[list[str]]:
    """Return the table: a header row, then one row per number of labels."""
    heading, models = _heading(curve), _list_models(curve)
    header = [f"labels, {heading}", *models.values()]
    return [
        header,
        *([f"{row['labels']:,}", *(_write(row.get(model), heading) for model in models)] for row in curve["rows"]),
    ]


def curve_markdown(curve: Mapping[str, Any]) -> str:
    """Return the table as Markdown, with a note."""
    return f"{as_markdown(curve_rows(curve))}\n\n{NOTE}"


def curve_panel(curve: Mapping[str, Any]) -> Panel:
    """Return the figure: the mean of each model over the number of labels."""
    factor = 100 if _heading(curve).endswith(SHARE) else 1
    series = []
    for model, name in _list_models(curve).items():
        points = [(row["labels"], factor * row[model]["mean"]) for row in curve["rows"] if row.get(model)]
        series.append(Series(name, name, tuple(at for at, _ in points), tuple(value for _, value in points)))
    return Panel("Scores over labels", tuple(series), "labels", _heading(curve), is_log=True)


def _heading(curve: Mapping[str, Any]) -> str:
    return name_metric(curve["kind"], curve["main_metric"])


def _list_models(curve: Mapping[str, Any]) -> dict[str, str]:
    names = {"tfidf": name_word_baseline(curve["kind"]) or ""} | MODEL_NAMES
    return {model: names[model] for model in MODELS if any(row.get(model) for row in curve["rows"])}


def _write(summary: Mapping[str, Any] | None, heading: str) -> str:
    if summary is None:
        return "not finite"
    mark = f" ({summary['improving']} improving)" if summary["improving"] else ""
    return format_spread(summary, heading) + mark


def describe_gains(curve: Mapping[str, Any]) -> str:
    """Describe at which number of labels pre-training gains most over the best other row."""
    heading, gains = _heading(curve), []
    for row in curve["rows"]:
        others = [row[model]["mean"] for model in ("tfidf", "random") if row.get(model)]
        if row.get("pretrained") and others:
            gains.append((row["pretrained"]["mean"] - max(others), row["labels"]))
    if not gains:
        return ""
    best, labels = max(gains)
    unit = " points" if heading.endswith(SHARE) else ""
    if best <= 0:
        return "At no number of labels is the pre-trained model ahead of both other rows."
    return (
        f"The pre-trained model is furthest ahead of the better other row at {labels:,} labels, by "
        f"{format_metric(best, heading)}{unit}."
    )
