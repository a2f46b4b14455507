"""Result sections of the report: the tables of models and classes, the confusion matrix, and the errors."""

from collections.abc import Mapping, Sequence
from typing import Any

from keras_bert_flow.evaluation.headings import format_metric, name_models, shown_metrics
from keras_bert_flow.evaluation.page import paragraph, shaded_table, table
from keras_bert_flow.evaluation.score_bars import describe_bars
from keras_bert_flow.evaluation.summary import (
    COMPARISON_NOTE,
    calibration_sentence,
    collapse_sentence,
    credit_sentence,
    describe_words,
    extra_results,
    improving_sentence,
    interval_sentence,
    result_rows,
    spread_sentence,
)
from keras_bert_flow.tasks.core.unreachable import list_unreachable
from keras_bert_flow.tasks.registry import find_task_class
from keras_bert_flow.training.finetuning.task_data import describe_texts

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
    runs = [
        [
            f"{name}, seed {run['seed']}",
            *(format_metric(run[metric], heading) for metric, heading in metrics.items()),
            f"{run['seconds']:,.1f}",
            *_describe_costs(run),
            "collapsed" if run["collapsed"] else "still improving" if run["improving"] else "",
        ]
        for model, name in name_models(results).items()
        for run in results["models"][model]["runs"]
        if run["seed"] is not None
    ]
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


def _describe_costs(run: Mapping[str, Any]) -> list[str]:
    """Return the trained parameters of a run, with their share, and the peak memory of its process."""
    if "trained_parameters" not in run:
        return ["", ""]
    share = run["trained_parameters"] / run["parameters"]
    return [f"{run['trained_parameters']:,} ({share:.2%})", f"{run['peak_bytes'] / 1e6:,.0f}"]


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


def describe_unread(results: Mapping[str, Any]) -> list[str]:
    """Return what the model does not read of the texts of the task; empty if it reads all of them."""
    found = results.get("texts", {}).items()
    return [paragraph(line) for name, counters in found for line in describe_texts(name, counters)]


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
    header = [find_task_class(kind).class_name, *SHARES.values(), *COUNTS.values()]
    return [table(header, rows), paragraph(f"Pre-trained, {_sum_of_runs(results)}.{left_out}", "note")]


def describe_confusion(results: Mapping[str, Any]) -> list[str]:
    """Return the confusion matrix; empty if the task has none."""
    if "confusion" not in results:
        return []
    names = results["task"]["labels"]
    if len(names) > MAX_CLASSES:
        return [paragraph(f"{len(names)} classes are too many to show; the matrix is in metrics.json.", "note")]
    note = f"Rows: label. Columns: prediction. Pre-trained, {_sum_of_runs(results)}."
    return [shaded_table("label", names, results["confusion"]), paragraph(note, "note")]


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
