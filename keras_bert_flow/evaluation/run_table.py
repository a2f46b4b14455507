"""Compare several evaluated runs in one table: the settings that differ, scores and costs."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keras_bert_flow.columns import GAP, fit, name_files
from keras_bert_flow.evaluation.headings import format_spread, main_metric, name_models, shown_metrics
from keras_bert_flow.evaluation.summary import align
from keras_bert_flow.json_documents import read_json_object
from keras_bert_flow.lineage.settings import as_yaml, flatten
from keras_bert_flow.markdown import as_markdown
from keras_bert_flow.records.manifest import check_folder
from keras_bert_flow.stages.evaluation import EVALUATION

NOTE = (
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
        return f"{align(tabulate_runs(runs))}\n\n{NOTE}"
    measures, labels = _measure(runs, is_short=True), list(runs)
    widest = max(len(cell) for measure in measures for cell in (*labels, *measure.cells))
    names = max(len(measure.name) for measure in measures) + INDENT
    at_once = max(1, (columns - min(names, columns // 2)) // (min(widest, columns // 4) + GAP))
    tables = [
        fit(_list_rows(measures, labels, slice(start, start + at_once)), columns)
        for start in range(0, len(labels), at_once)
    ]
    return "\n\n".join([*tables, textwrap.fill(NOTE, columns)])


def runs_markdown(runs: Mapping[str, Path]) -> str:
    """Return the table as Markdown."""
    return f"{as_markdown(tabulate_runs(runs))}\n\n{NOTE}"


def _list_rows(measures: Sequence[_Measure], labels: Sequence[str], chosen: slice) -> list[list[str]]:
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
    differing = [name for name in names if len({repr(flat.get(name)) for flat in settings}) > 1 and not _is_place(name)]
    shown = differing if len(differing) <= MOST_SETTINGS else []
    measures = []
    for name in shown:
        values = [flat.get(name) for flat in settings]
        values = name_files(values) if is_short else values
        measures.append(_Measure(name, ["-" if value is None else as_yaml(value) for value in values]))
    models: dict[str, str] = {}
    for _, results in found:
        models |= {model: name for model, name in name_models(results).items() if model != "baseline"}
    for heading in dict.fromkeys(_heading(results) for _, results in found):
        for model, name in models.items():
            cells = [_score(results, model) if _heading(results) == heading else "" for _, results in found]
            measures.append(_Measure(name, cells, heading))
    measures.append(_Measure("runs", [str(len(results["models"]["pretrained"]["runs"])) for _, results in found]))
    for key, (name, spec) in FIGURES.items():
        if any(key in results["pretraining"] for _, results in found):
            measures.append(_Measure(name, [_figure(results["pretraining"], key, spec) for _, results in found]))
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


def _is_place(name: str) -> bool:
    return name in NOT_TOLD or name.startswith(("task.extra_dev", "corpus.input"))


def _heading(results: Mapping[str, Any]) -> str:
    return f"{results['task']['name']}, {shown_metrics(results)[main_metric(results)]}"


def _score(results: Mapping[str, Any], model: str) -> str:
    metric = main_metric(results)
    found = results["models"].get(model)
    return "" if found is None else format_spread(found[metric], shown_metrics(results)[metric])


def _figure(pretraining: Mapping[str, Any], key: str, spec: str) -> str:
    value = pretraining.get(key)
    return "" if value is None else format(value, spec)
