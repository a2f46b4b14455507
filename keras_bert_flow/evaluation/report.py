"""Write a run's report: one HTML file with the gain from pre-training, and everything behind it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from keras_bert_flow.artifacts import write_atomically
from keras_bert_flow.evaluation.curves import Panel, describe_panel, draw_panel, last_values, log_panels
from keras_bert_flow.evaluation.data_card import describe_data
from keras_bert_flow.evaluation.grid_table import NOTE, grid_rows
from keras_bert_flow.evaluation.label_curve import NOTE as CURVE_NOTE
from keras_bert_flow.evaluation.label_curve import curve_panel, curve_rows, describe_gains
from keras_bert_flow.evaluation.page import code, details, figure, page, paragraph, section, table
from keras_bert_flow.evaluation.pair_tables import describe_minimal_pairs
from keras_bert_flow.evaluation.result_sections import (
    describe_classes,
    describe_confusion,
    describe_errors,
    describe_extra_dev,
    describe_results,
    describe_unreachable_labels,
    describe_unread,
)
from keras_bert_flow.evaluation.stage_costs import describe_costs, summarise_costs
from keras_bert_flow.evaluation.summary import verdict

# Key of `pretraining` in the results → label, and format of the value.
MASKED_LM_ROWS = {
    "masked_lm_loss": ("masked-LM loss, held out, nats", ".4f"),
    "masked_lm_perplexity": ("masked-LM perplexity, held out", ",.1f"),
    "masked_lm_accuracy": ("masked-LM accuracy, held out", ".1%"),
    "unigram_accuracy": ("unigram baseline: always the commonest token", ".1%"),
}
HEAD_ROWS = {
    "loss": ("loss, held out, nats", ".4f"),
    "accuracy": ("accuracy, held out", ".1%"),
    "chance": ("accuracy by chance", ".1%"),
}  # after its name
RUN_ROWS = {
    "steps": ("steps", ",.0f"),
    "tokens": ("tokens", ",.0f"),
    "tokens_per_second": ("tokens per second", ",.0f"),
    "seconds": ("seconds", ",.1f"),
}


@dataclass(frozen=True)
class Report:
    """Content of the report.

    Attributes:
        title: title of the page.
        results: as in `metrics.json`; see `keras_bert_flow.evaluation.results`.
        pretraining: metrics of the pre-training, as in the results; empty to use those.
        pretraining_title: title of what made the model that was fine-tuned.
        curves: parsed lines of each `log.jsonl`; see `keras_bert_flow.evaluation.curves.log_panels`.
        data: as returned by `make_data_card`.
        counters: the records' counts; a nested mapping counts by reason.
        stages: as returned by `gather_costs`.
        config: the resolved configuration, in JSON-like values.
        versions: name → version of the software of the run.
        usage: commands and Python code, one block each.
        errors: what `review` of the task returns for each; see `keras_bert_flow.evaluation.results.worst_errors`.
    """

    title: str
    results: Mapping[str, Any]
    pretraining: Mapping[str, Any] = field(default_factory=dict)
    pretraining_title: str = "Pre-training"
    curves: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    counters: Mapping[str, Any] = field(default_factory=dict)
    stages: Sequence[Mapping[str, Any]] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    usage: Sequence[str] = ()
    errors: Sequence[Mapping[str, Any]] = ()


def write_report(path: str | Path, report: Report) -> None:
    """Write the report as one HTML file; equal reports give equal bytes."""
    write_atomically(path, render_report(report).encode("utf-8", "backslashreplace"))


def render_report(report: Report) -> str:
    """Return the page, without empty sections."""
    earlier = report.results.get("earlier", {})
    pretraining = report.pretraining or report.results.get("pretraining", {})
    return page(
        report.title,
        [
            paragraph(verdict(report.results), "verdict"),
            paragraph(summarise_costs(report.stages, str(report.config.get("backend", ""))), "note"),
            section("Result", *describe_results(report.results)),
            section("Fewer labels", *_describe_label_curve(report.results.get("label_curve"))),
            section("Other dev sets", *describe_extra_dev(report.results)),
            section("Labels out of reach", *describe_unreachable_labels(report.results)),
            section("Tables", *(paragraph(remark, "note") for remark in report.results.get("remarks", ()))),
            section("Not read", *describe_unread(report.results)),
            section("Grid", *_describe_grid(report.results.get("grid"))),
            section("Grid, random weights", *_describe_grid(report.results.get("grid_random"))),
            *(section(title, _describe_pretraining(figures)) for title, figures in earlier.items()),
            section(report.pretraining_title, _describe_pretraining(pretraining)),
            section("Minimal pairs", *describe_minimal_pairs(report.results.get("minimal_pairs"))),
            section("Curves", *_describe_curves(log_panels(report.curves, report.results["task"]["main_metric"]))),
            section("Classes", *describe_classes(report.results)),
            section("Confusion", *describe_confusion(report.results)),
            section("Worst errors", describe_errors(report.errors)),
            section("Data", *describe_data(report.data, report.counters)),
            section("Cost", *describe_costs(report.stages)),
            section(
                "Versions",
                table(["name", "version"], [[*map(str, item)] for item in report.versions.items()], ["", ""]),
            ),
            section("Use", *map(code, report.usage)),
            section("Configuration", details("Resolved configuration, as YAML", _write_yaml(report.config))),
        ],
    )


def _describe_grid(grid: Mapping[str, Any] | None) -> list[str]:
    if grid is None:
        return []
    header, *rows = grid_rows(grid)
    return [table(header, rows, [*["number"] * (len(header) - 1), ""]), paragraph(NOTE, "note")]


def _describe_label_curve(curve: Mapping[str, Any] | None) -> list[str]:
    if curve is None:
        return []
    header, *rows = curve_rows(curve)
    parts = [table(header, rows), paragraph(f"{CURVE_NOTE} {describe_gains(curve)}", "note")]
    try:
        return [*parts, figure(draw_panel(curve_panel(curve), "labels"), "Mean over the seeds.")]
    except ImportError:  # without matplotlib the table has all values
        return parts


def _describe_pretraining(pretraining: Mapping[str, Any]) -> str:
    heads = [key.removesuffix("_loss") for key in pretraining if key.endswith("_loss") and key not in MASKED_LM_ROWS]
    head_rows = {
        f"{head}_{ending}": (f"{head.replace('_', '-')} {name}", spec)
        for head in heads
        for ending, (name, spec) in HEAD_ROWS.items()
    }
    rows = [
        [name, format(pretraining[key], spec)]
        for key, (name, spec) in (MASKED_LM_ROWS | head_rows | RUN_ROWS).items()
        if pretraining.get(key) is not None
    ]
    return table(["measure", "value"], rows)


def _describe_curves(panels: Sequence[Panel]) -> list[str]:
    if not panels:
        return []
    try:
        return [
            figure(draw_panel(panel, f"figure{number}"), describe_panel(panel))
            for number, panel in enumerate(panels, 1)
        ]
    except ImportError:
        note = "The curves need matplotlib: pip install 'keras-bert-flow[plots]'. These are their last values."
        columns = ["figure", "line", "last step", "last value"]
        return [paragraph(note, "note"), table(columns, last_values(panels), ["", "", "number", "number"])]


def _write_yaml(config: Mapping[str, Any]) -> str:
    plain = json.loads(json.dumps(config))  # tuples become lists, as YAML writes both
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True) if plain else ""
