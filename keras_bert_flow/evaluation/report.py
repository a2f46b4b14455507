"""Write a run's report: results with the gain from pre-training, the data, and everything behind them."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from keras_bert_flow.data.pretraining_records import show_examples
from keras_bert_flow.evaluation.curves import Panel, describe_bars, describe_panel, draw_panel, last_values, log_panels
from keras_bert_flow.evaluation.page import (
    code,
    describe_costs,
    details,
    figure,
    page,
    paragraph,
    section,
    shaded_table,
    summarise_costs,
    table,
)
from keras_bert_flow.evaluation.summary import (
    COMPARISON_NOTE,
    calibration_sentence,
    collapse_sentence,
    credit_sentence,
    describe_words,
    extra_results,
    format_metric,
    improving_sentence,
    interval_sentence,
    name_models,
    result_rows,
    shown_metrics,
    spread_sentence,
    verdict,
)
from keras_bert_flow.evaluation.tables import CURVE_NOTE as CURVE_NOTE
from keras_bert_flow.evaluation.tables import (
    NOTE,
    curve_panel,
    curve_rows,
    describe_gains,
    describe_minimal_pairs,
    grid_rows,
)
from keras_bert_flow.results.artifacts import write_atomically
from keras_bert_flow.tasks.core.task import Task
from keras_bert_flow.tasks.core.texts import list_unreachable
from keras_bert_flow.tasks.registry import KINDS
from keras_bert_flow.training.finetuning.task_data import describe_texts

# Result sections of the report: the tables of models and classes, the confusion matrix, and the errors.

MAX_CLASSES = 40  # wider confusion matrices and longer tables are not readable
MAX_TEXT = 500  # characters of a shown example
# Count → heading.
COUNTS = {"gold": "in the dev set", "predicted": "predicted", "correct": "in both"}
SHARES = {"precision": "precision %", "recall": "recall %", "f1": "F1 %"}
NOTHING = "(none)"


def describe_results(results: Mapping[str, Any]) -> list[str]:
    """Return the bars and the table of models, its notes, and the table of runs."""
    task, metrics = results["task"], shown_metrics(results)
    header, *rows = result_rows(results)
    labels = f", {len(task['labels'])} labels" if task["labels"] else ""
    counts = f"{task['train_examples']:,} training and {task['dev_examples']:,} dev examples{labels}."
    note = " ".join(filter(None, [counts, spread_sentence(results), collapse_sentence(results)]))
    runs = []
    for model, name in name_models(results).items():
        for run in results["models"][model]["runs"]:
            if run["seed"] is None:
                continue
            scores = [format_metric(run[metric], heading) for metric, heading in metrics.items()]
            costs = ["", ""]
            if "trained_parameters" in run:
                share = run["trained_parameters"] / run["parameters"]
                costs = [f"{run['trained_parameters']:,} ({share:.2%})", f"{run['peak_bytes'] / 1e6:,.0f}"]
            mark = "collapsed" if run["collapsed"] else "still improving" if run["improving"] else ""
            runs.append([f"{name}, seed {run['seed']}", *scores, f"{run['seconds']:,.1f}", *costs, mark])
    columns = ["run", *metrics.values(), "seconds", "trained parameters", "peak memory, MB", ""]
    kinds = ["", *["number"] * (len(columns) - 2), ""]
    sentences = (
        note,
        credit_sentence(results),
        improving_sentence(results),
        COMPARISON_NOTE,
        describe_words(results),
        interval_sentence(results),
        calibration_sentence(results),
    )
    notes = [paragraph(sentence, "note") for sentence in sentences]
    return [*describe_bars(results), table(header, rows), *notes, table(columns, runs, kinds)]


def describe_extra_dev(results: Mapping[str, Any]) -> list[str]:
    """Return a table of models for each further dev file; empty if there is none."""
    parts = []
    for name, other in extra_results(results).items():
        header, *rows = result_rows(other)
        count = results["extra_dev"][name]["examples"]
        note = f"{count:,} examples of {name}, which have no part in choosing epochs or settings."
        parts += [table([name, *header[1:]], rows), paragraph(note, "note")]
    return parts


def describe_unreachable_labels(results: Mapping[str, Any]) -> list[str]:
    """Return a table of the labels that no model can predict, and why; empty if there are none."""
    rows = [
        [f"{name}: {problem}", f"{count:,}", f"{total:,}", f"{count / total:.2%}", reason]
        for name, found in results.get("unreachable", {}).items()
        for problem, total, reasons in list_unreachable(found)
        for reason, count in reasons.items()
    ]
    note = "These bound the score: a perfect model would miss them, or guess. Counted with the labels of each file."
    header = ["labels", "count", "of", "share", "reason"]
    kinds = ["", "number", "number", "number", "text"]
    return [table(header, rows, kinds), paragraph(note, "note")] if rows else []


def describe_classes(results: Mapping[str, Any]) -> list[str]:
    """Return the table of classes; empty if the task has none."""
    classes, kind = results.get("classes", {}), results["task"]["kind"]
    if not classes:
        return []
    names = list(classes)
    left_out = ""
    if len(names) > MAX_CLASSES:
        names = sorted(names, key=lambda name: classes[name]["f1"])[:MAX_CLASSES]
        left_out = f" The {MAX_CLASSES} of {len(classes)} with the lowest F1; the others are in metrics.json."
    rows = [
        [
            name,
            *(format_metric(classes[name][share], heading) for share, heading in SHARES.items()),
            *(f"{classes[name][count]:,}" for count in COUNTS),
        ]
        for name in names
    ]
    header = [KINDS.find(kind).class_name, *SHARES.values(), *COUNTS.values()]
    return [table(header, rows), paragraph(f"Pre-trained, {_sum_of_runs(results)}.{left_out}", "note")]


def describe_confusion(results: Mapping[str, Any]) -> list[str]:
    """Return the confusion matrix; empty if the task has none."""
    if "confusion" not in results:
        return []
    names = results["task"]["labels"]
    if len(names) > MAX_CLASSES:
        return [paragraph(f"{len(names)} classes are too many to show; the matrix is in metrics.json.", "note")]
    note = f"Rows: label. Columns: prediction. Pre-trained, {_sum_of_runs(results)}."
    return [shaded_table(names, results["confusion"]), paragraph(note, "note")]


def describe_errors(errors: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of errors, each as returned by `review` of a task."""
    measure = "distance" if any("distance" in error for error in errors) else "probability"
    rows = [
        [
            show_texts(error),
            write_answer(error["gold"]),
            write_answer(error["predicted"]),
            f"{error[measure]:.3f}",
        ]
        for error in errors
    ]
    return table(["text", "label", "predicted", measure], rows, ["text", "", "", "number"])


def _sum_of_runs(results: Mapping[str, Any]) -> str:
    runs = len(results["models"]["pretrained"]["runs"])
    return f"summed over {runs} run{'s' if runs > 1 else ''}"


def show_texts(shown: Mapping[str, Any]) -> str:
    """Format the texts of an example, as returned by `show` and `review` of a task."""
    return " ‖ ".join(abridge(shown[name]) for name in ("text", "text_pair") if shown.get(name))


def write_answer(answer: Any) -> str:
    """Format a label or a prediction, as returned by `show` and `review` of a task."""
    if isinstance(answer, list):
        answer = ", ".join(answer)
    return abridge(f"{answer:.3f}" if isinstance(answer, float) else answer) or NOTHING


def abridge(text: str, length: int = MAX_TEXT) -> str:
    return text if len(text) <= length else f"{text[:length]}…"


# Data card of a report: task tables with labels and examples, sample records, and record counts.

SHOWN_EXAMPLES, SHOWN_RECORDS = 4, 2
LOOKED_AT = 1000  # examples searched for one of each label
MAX_RECORD = 1200  # characters of a shown record: a long sequence is a page
# Counter → the counter that includes it.
CARD_SHARES = {
    "unknown_tokens": "tokens",
    "unknown_characters": "characters",
    "long_word_characters": "characters",
    "stripped_characters": "characters",
    "random_next_that_follows": "random_next",
    "masked_tokens": "instance_tokens",
    "padding_positions": "positions",
}


def make_data_card(task: Task, tables: Mapping[str, Sequence[Any]], records: Path) -> dict[str, Any]:
    """Collect the facts about the data.

    Args:
        task: with its labels.
        tables: name → examples; those shown are from the first.
        records: what the model was pre-trained on.
    Returns:
        In plain JSON values: `tables`, name → number of examples and, if the labels of examples are the task's, the
        count of each; `examples`, as returned by `show` of the task; `records`, as text.
    """
    counted = {}
    for name, examples in tables.items():
        golds = [task.show(example)["gold"] for example in examples] if task.labels else []
        counts = Counter(label for gold in golds for label in (gold if isinstance(gold, list) else [gold]))
        is_of_task = task.labels and counts.keys() <= {*task.labels}  # not so in tagging or regression
        labels = {label: counts[label] for label in task.labels} if is_of_task else {}
        counted[name] = {"examples": len(examples), "labels": labels}
    try:
        blocks = show_examples(records, SHOWN_RECORDS).split("\n\n")
        shown = "\n\n".join(abridge(block, MAX_RECORD) for block in blocks)
    except (OSError, ValueError):  # moved away since the training, or without training records
        shown = ""
    return {"tables": counted, "examples": _choose_examples(task, next(iter(tables.values()))), "records": shown}


def describe_data(card: Mapping[str, Any], counters: Mapping[str, Any]) -> list[str]:
    """Return the data section of the report; `counters` are those of the records."""
    parts = [_tabulate(card.get("tables", {}))]
    if examples := card.get("examples"):
        rows = [[show_texts(shown), write_answer(shown["gold"])] for shown in examples]
        parts.append(table(["training example", "label"], rows, ["text", "text"]))
    if counters:
        parts.append(table(["pre-training records", "count", "share"], _count_rows(counters)))
    if records := card.get("records"):
        parts += [paragraph("Records as a model sees them:", "note"), code(records)]
    return parts


def _choose_examples(task: Task, examples: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the first example of each label, or the first examples, in the order of the table."""
    first: dict[str, int] = {}
    for place, example in enumerate(examples[:LOOKED_AT]):
        first.setdefault(repr(task.show(example)["gold"]), place)
        if len(first) >= SHOWN_EXAMPLES:
            break
    places = [*dict.fromkeys([*first.values(), *range(min(SHOWN_EXAMPLES, len(examples)))])]
    return [task.show(examples[place]) for place in sorted(places[:SHOWN_EXAMPLES])]


def _tabulate(tables: Mapping[str, Mapping[str, Any]]) -> str:
    counts = table(["table", "examples"], [[name, f"{found['examples']:,}"] for name, found in tables.items()])
    labels = list(dict.fromkeys(label for found in tables.values() for label in found["labels"]))
    if not labels or len(labels) > MAX_CLASSES:
        return counts
    with_labels = {name: found for name, found in tables.items() if found["labels"]}
    header = ["label", *(column for name in with_labels for column in (name, "share"))]
    rows = []
    for label in labels:
        cells = []
        for found in with_labels.values():  # an example may have several labels
            count = found["labels"].get(label, 0)
            cells += [f"{count:,}", f"{100 * count / (found['examples'] or 1):.1f} %"]
        rows.append([label, *cells])
    return f"{counts}\n{table(header, rows)}"


def _count_rows(counters: Mapping[str, Any], prefix: str = "") -> list[list[str]]:
    rows = []
    for name, value in counters.items():
        label = prefix + str(name).replace("_", " ")
        if isinstance(value, Mapping):
            rows += _count_rows(value, f"{label}: ")
        else:
            whole = counters.get(CARD_SHARES[name]) if name in CARD_SHARES else None
            share = f"{value / whole:.2%} of {CARD_SHARES[name]}".replace("_", " ") if whole else ""
            rows.append([label, f"{value:,}" if isinstance(value, int) else str(value), share])
    return rows


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
ERROR_ROWS = {"loss": ("loss, held out", ".4g")}  # of what has no accuracy: squared errors
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
    unread = [line for item in report.results.get("texts", {}).items() for line in describe_texts(*item)]
    config = json.loads(json.dumps(report.config))  # tuples become lists, as YAML writes both
    written = yaml.safe_dump(config, sort_keys=False, allow_unicode=True) if config else ""
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
            section("Not read", *map(paragraph, unread)),
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
            section("Configuration", details("Resolved configuration, as YAML", written)),
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
        for ending, (name, spec) in (HEAD_ROWS if f"{head}_accuracy" in pretraining else ERROR_ROWS).items()
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
