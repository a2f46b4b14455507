"""Tables of a grid, of minimal pairs, of a label curve and of several runs; a table is its rows, the header first."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keras_bert_flow.console.terminal import GAP, abridge, fit, name_files
from keras_bert_flow.evaluation.curves import Panel, Series
from keras_bert_flow.evaluation.page import paragraph, table
from keras_bert_flow.evaluation.results import is_improving
from keras_bert_flow.evaluation.summary import (
    MODEL_NAMES,
    SHARE,
    align,
    format_metric,
    format_spread,
    main_metric,
    name_metric,
    name_models,
)
from keras_bert_flow.files.documents import read_json_object
from keras_bert_flow.results.describing import as_yaml, flatten
from keras_bert_flow.results.manifest import check_folder
from keras_bert_flow.results.stages.tasks import EVALUATION
from keras_bert_flow.tasks.core.metrics import summarise_runs
from keras_bert_flow.tasks.core.task import Task
from keras_bert_flow.tasks.registry import KINDS

GRID_FILE, RANDOM_GRID_FILE = "grid.json", "grid-random.json"
CHOSEN, FAILED = "chosen", "not finite"
NOTE = (
    "Scores are of the dev set, which has chosen the point as well: that of the chosen one is too high by what chance "
    "gave the best of so many. Report the scores of a test set that has chosen nothing."
)


def read_grid(finetuned: str | Path, name: str = GRID_FILE) -> dict[str, Any] | None:
    """Return the grid that `kbf finetune` saved, or None if it had none.

    Raises:
        ValueError: it is damaged.
    """
    path = Path(finetuned) / name
    if not path.is_file():
        return None
    grid = read_json_object(path)
    try:
        grid_rows(grid), other_seconds(grid)
    except (LookupError, TypeError, ValueError, AttributeError):
        raise ValueError(f"A grid must have all of its fields. Received: {path}, damaged. Fine-tune again.") from None
    return grid


def other_seconds(grid: Mapping[str, Any] | None) -> float:
    """Return the total time of the points that were not chosen; that of failed runs is not known."""
    if not grid:
        return 0.0
    return sum((point["seconds"] or 0.0 for point in grid["points"] if point["name"] != grid["chosen"]), 0.0)


def grid_rows(grid: Mapping[str, Any]) -> list[list[str]]:
    """Return the table: a header row, then one row per point, cheapest first."""
    metric = grid["main_metric"]
    heading = name_metric(grid["kind"], metric)
    header = ["learning rate", "batch size", "epochs", heading, "runs", "seconds", ""]
    rows = []
    for point in grid["points"]:
        is_chosen, score = point["name"] == grid["chosen"], point["score"]
        rows.append(
            [
                f"{point['learning_rate']:g}",
                str(point["batch_size"]),
                str(point["epochs"]),
                FAILED if score is None else format_spread(score, heading),
                str(len(point["runs"])),
                "" if point["seconds"] is None else f"{point['seconds']:,.1f}",
                CHOSEN if is_chosen else "",
            ]
        )
    return [header, *rows]


# Table of the results on minimal pairs.

HEADER = ("minimal pairs", "pairs", "accuracy %", "standard error", "ties")
_NOUNS = {"fields": "field", "linguistics_terms": "term", "phenomena": "phenomenon"}
COARSE = ("fields", "linguistics_terms")


def pairs_rows(results: Mapping[str, Any], groupings: Sequence[str] = tuple(_NOUNS)) -> list[list[str]]:
    """Return the table: a header row, then all pairs, then every group of the groupings."""
    groups = [("all", results)]
    for grouping in groupings:
        groups += [(f"{_NOUNS[grouping]} {abridge(name)}", group) for name, group in results[grouping].items()]
    rows = [[*HEADER]]
    for name, group in groups:
        error = group["standard_error"]
        rows.append(
            [
                name,
                f"{group['pairs']:,}",
                f"{100 * group['accuracy']:.1f}",
                f"{100 * error:.1f}" if error else "",  # equal pairs have an error of 0, which says nothing of others
                f"{group['ties']:,}",
            ]
        )
    return rows


def describe_minimal_pairs(results: Mapping[str, Any] | None) -> list[str]:
    """Return the section of the report; empty if no pairs were scored."""
    if results is None:
        return []
    limit = f", the first {results['limit']:,} of each phenomenon" if results["limit"] else ""
    note = (
        f"{results['pairs']:,} pairs of an acceptable and an unacceptable sentence{limit}, scored by the pre-trained "
        "model without fine-tuning. Accuracy: how often the acceptable sentence has the higher pseudo-log-likelihood; "
        "a tie counts one half, and guessing gives 50 %. The standard error is over pairs."
    )
    header, *rows = pairs_rows(results)
    return [table(header, rows), paragraph(note, "note")]


# Label curve: a table and a figure of scores by number of labels, for pre-trained, random weights and TF-IDF.

CURVE_FILE = "label-counts.json"
MODELS = ("tfidf", "random", "pretrained")
CURVE_NOTE = (
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
    # scikit-learn, two seconds that comparing finished reports does without
    from keras_bert_flow.tasks.baselines.word_baseline import answer_from_words

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
    """Return the mean score of each model for one number of labels; None if a run of it has no score."""
    models = {}
    for model, runs in row["runs"].items():
        scores = [{"score": run["score"]} for run in runs if run["score"] is not None]
        improving = sum(bool(is_improving(run["dev_scores"], metric, dev_examples)) for run in runs)
        summary = summarise_runs(scores)["score"] if len(scores) == len(runs) else None
        models[model] = summary and summary | {"runs": len(runs), "improving": improving}
    return {"labels": int(row["labels"]), "epochs": row["epochs"], **models}


def curve_rows(curve: Mapping[str, Any]) -> list[list[str]]:
    """Return the table: a header row, then one row per number of labels."""
    heading, models = name_metric(curve["kind"], curve["main_metric"]), _list_models(curve)
    rows = [[f"labels, {heading}", *models.values()]]
    for row in curve["rows"]:
        cells = []
        for summary in map(row.get, models):
            mark = f" ({summary['improving']} improving)" if summary and summary["improving"] else ""
            cells.append(format_spread(summary, heading) + mark if summary else FAILED)
        rows.append([f"{row['labels']:,}", *cells])
    return rows


def curve_panel(curve: Mapping[str, Any]) -> Panel:
    """Return the figure: the mean of each model over the number of labels."""
    heading, series = name_metric(curve["kind"], curve["main_metric"]), []
    factor = 100 if heading.endswith(SHARE) else 1
    for model, name in _list_models(curve).items():
        points = [(row["labels"], factor * row[model]["mean"]) for row in curve["rows"] if row.get(model)]
        series.append(Series(name, name, tuple(at for at, _ in points), tuple(value for _, value in points)))
    return Panel("Scores over labels", tuple(series), "labels", heading, is_log=True)


def _list_models(curve: Mapping[str, Any]) -> dict[str, str]:
    names = {"tfidf": KINDS.find(curve["kind"]).word_baseline or ""} | MODEL_NAMES
    return {model: names[model] for model in MODELS if any(row.get(model) for row in curve["rows"])}


def describe_gains(curve: Mapping[str, Any]) -> str:
    """Describe at which number of labels pre-training gains most over the best other row."""
    heading, gains = name_metric(curve["kind"], curve["main_metric"]), []
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


# Compare several evaluated runs in one table: the settings that differ, scores and costs.

RUNS_NOTE = (
    "Mean ± standard deviation over the seeds. Means are not told apart that differ by less than twice the larger "
    "deviation divided by the root of the number of runs."
)
NOT_TOLD = ("name", "runs", "matrix", "beam", "task.train", "task.dev")  # names and paths, which are not settings
INDENT = 2  # of a row under its heading
MOST_SETTINGS = 12  # columns of settings that differ; more are another configuration, not another setting
FIGURES = {
    "masked_lm_loss": ("masked-LM loss", ".3f"),
    "parameters": ("parameters", ",d"),
    "seconds": ("pre-training, s", ",.0f"),
}


@dataclass(frozen=True)
class _Measure:
    """What a table compares: a setting, a score or a figure.

    Attributes:
        name: of it.
        cells: its values, one per run.
        heading: of a score: the task and the metric.
    """

    name: str
    cells: list[str]
    heading: str = ""


def tabulate_runs(runs: Mapping[str, Path]) -> list[list[str]]:
    """Return a header row, and one row per run.

    Args:
        runs: label → folder that `kbf report` has published.
    Raises:
        FileNotFoundError, ValueError: a folder is not one of these, or is damaged.
    """
    measures = _measure(runs)
    names = [f"{measure.name}, {measure.heading}" if measure.heading else measure.name for measure in measures]
    cells = zip(*(measure.cells for measure in measures), strict=True)
    return [["run", *names], *([label, *row] for label, row in zip(runs, cells, strict=True))]


def runs_text(runs: Mapping[str, Path], columns: int | None = None) -> str:
    """Return the table as plain text: a line per run, or, to fit a width, a column per run, several tables if needed.

    Args:
        runs: as above.
        columns: the width; None for lines of any length.
    """
    if columns is None:
        return f"{align(tabulate_runs(runs))}\n\n{RUNS_NOTE}"
    measures, labels = _measure(runs, is_short=True), list(runs)
    widest = max(len(cell) for measure in measures for cell in (*labels, *measure.cells))
    names = max(len(measure.name) for measure in measures) + INDENT
    at_once = max(1, (columns - min(names, columns // 2)) // (min(widest, columns // 4) + GAP))
    tables = [
        fit(_list_run_rows(measures, labels, slice(start, start + at_once)), columns)
        for start in range(0, len(labels), at_once)
    ]
    return "\n\n".join([*tables, textwrap.fill(RUNS_NOTE, columns)])


def _list_run_rows(measures: Sequence[_Measure], labels: Sequence[str], chosen: slice) -> list[list[str]]:
    """Return a row per measure that some of the chosen runs have, and one per heading."""
    heading, rows = "", [["", *labels[chosen]]]
    for measure in measures:
        cells = measure.cells[chosen]
        if not any(cells):
            continue
        if measure.heading not in ("", heading):
            rows.append([f"{measure.heading}:", *[""] * len(cells)])
        heading = measure.heading
        rows.append([f"{' ' * INDENT if heading else ''}{measure.name}", *cells])
    return rows


def _measure(runs: Mapping[str, Path], is_short: bool = False) -> list[_Measure]:
    found = [_read(folder) for folder in runs.values()]
    settings = [flatten(config) for config, _ in found]
    names = sorted({name for flat in settings for name in flat})
    names = [name for name in names if name not in NOT_TOLD and not name.startswith(("task.extra_dev", "corpus.input"))]
    differing = [name for name in names if len({repr(flat.get(name)) for flat in settings}) > 1]
    shown = differing if len(differing) <= MOST_SETTINGS else []
    measures = []
    for name in shown:
        values = [flat.get(name) for flat in settings]
        values = name_files(values) if is_short else values
        measures.append(_Measure(name, ["-" if value is None else as_yaml(value) for value in values]))
    models: dict[str, str] = {}
    for _, results in found:
        models |= {model: name for model, name in name_models(results).items() if model != "baseline"}
    metrics = [main_metric(results) for _, results in found]
    headings = [f"{results['task']['name']}, {name}" for (_, results), (_, name) in zip(found, metrics, strict=True)]
    for heading in dict.fromkeys(headings):
        for model, name in models.items():
            cells = []
            for (_, results), (metric, metric_name), of_run in zip(found, metrics, headings, strict=True):
                summary = results["models"].get(model) if of_run == heading else None
                cells.append(format_spread(summary[metric], metric_name) if summary else "")
            measures.append(_Measure(name, cells, heading))
    measures.append(_Measure("runs", [str(len(results["models"]["pretrained"]["runs"])) for _, results in found]))
    for key, (name, spec) in FIGURES.items():
        values = [results["pretraining"].get(key) for _, results in found]
        if any(key in results["pretraining"] for _, results in found):
            measures.append(_Measure(name, ["" if value is None else format(value, spec) for value in values]))
    return measures


def _read(folder: Path) -> tuple[Mapping[str, Any], dict[str, Any]]:
    config = check_folder(folder, EVALUATION.name).config
    results = read_json_object(folder / "metrics.json")
    try:
        main_metric(results), results["pretraining"], results["models"]["pretrained"]["runs"]
    except (LookupError, TypeError):
        raise ValueError(
            f"Results must have all of their fields. Received: {folder}, damaged. Make it again."
        ) from None
    return config, results
