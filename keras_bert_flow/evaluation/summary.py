"""Summary of the results: a verdict in one sentence, a small table, and the names of metrics."""

from collections.abc import Mapping, Sequence
from typing import Any

from keras_bert_flow.console.terminal import JOINERS, escape_controls, escape_markdown
from keras_bert_flow.tasks.core.texts import describe_unreachable
from keras_bert_flow.tasks.registry import KINDS
from keras_bert_flow.training.finetuning.task_data import describe_texts

# Names and number formats of what is in `metrics.json`: shares in percent, others as they are.

MODEL_NAMES = {
    "random": "random weights",
    "initial": "initial embeddings, no pre-training steps",
    "pretrained": "pre-trained",
}
SHARE = " %"  # ends the heading of a share


def name_metric(kind: str, metric: str) -> str:
    """Return the heading of a metric of a kind of task."""
    return KINDS.find(kind).headings.get(metric, metric)


def name_models(results: Mapping[str, Any]) -> dict[str, str]:
    """Return the models of the results and their names, in the order of the rows."""
    task = results["task"]
    names = {"baseline": task["baseline"], "tfidf": KINDS.find(task["kind"]).word_baseline} | MODEL_NAMES
    return {model: name for model, name in names.items() if model in results["models"]}


def shown_metrics(results: Mapping[str, Any]) -> dict[str, str]:
    """Return the metrics to show and their headings, the main one first."""
    headings = KINDS.find(results["task"]["kind"]).headings
    found = {name: heading for name, heading in headings.items() if name in results["models"]["pretrained"]}
    return dict([main_metric(results)]) | found


def main_metric(results: Mapping[str, Any]) -> tuple[str, str]:
    """Return the metric by which the runs are compared, and its heading."""
    metric = results["task"]["main_metric"]
    return metric, name_metric(results["task"]["kind"], metric)


def format_metric(value: float, heading: str) -> str:
    """Format a share in percent; correlations and errors unchanged, as is usual in the field."""
    return f"{100 * value:.1f}" if heading.endswith(SHARE) else f"{value:.3f}"


def format_spread(summary: Mapping[str, float], heading: str) -> str:
    """Format mean ± standard deviation; the deviation only if runs differ."""
    spread = f" ± {format_metric(summary['standard_deviation'], heading)}" if summary["standard_deviation"] > 0 else ""
    return format_metric(summary["mean"], heading) + spread


def extra_results(results: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the results on each further dev file, in the form of the main results, for the tables here."""
    extra = results.get("extra_dev", {})
    return {name: {"task": results["task"], "models": found["models"]} for name, found in extra.items()}


def remarks_markdown(results: Mapping[str, Any]) -> list[str]:
    """Return Markdown lists: labels that no model can predict, remarks on the tables, and texts that are not read."""
    texts, unreachable = results.get("texts", {}).items(), results.get("unreachable", {}).items()
    lists = {
        "Labels out of reach": [describe_unreachable(name, found) for name, found in unreachable],
        "On the tables": results.get("remarks", ()),
        "Not read": [line for name, counters in texts for line in describe_texts(name, counters)],
    }
    return [
        "\n".join([f"{title}:", "", *(f"- {escape_markdown(line)}" for line in lines)])
        for title, lines in lists.items()
        if lines
    ]


def align(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as aligned plain text, one line each; all but the first column are right-aligned."""
    rows = [[escape_controls(cell, JOINERS) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows
    )


def result_rows(results: Mapping[str, Any]) -> list[list[str]]:
    """Return the result table: a header row, then one row per model.

    The last column has the number of runs, and how many of them collapsed or were still improving.
    """
    models, metrics = results["models"], shown_metrics(results)
    rows = [["model", *metrics.values(), "runs"]]
    for model, name in name_models(results).items():
        scores = [format_spread(models[model][metric], heading) for metric, heading in metrics.items()]
        seeds = [run for run in models[model]["runs"] if run["seed"] is not None]
        counts = {mark: sum(bool(run[mark]) for run in seeds) for mark in ("collapsed", "improving")}
        marks = ", ".join(f"{count} {mark}" for mark, count in counts.items() if count)
        rows.append([name, *scores, (str(len(seeds)) if seeds else "-") + (f" ({marks})" if marks else "")])
    return rows


def improving_sentence(results: Mapping[str, Any]) -> str:
    """Return which runs were still improving when they ended, with the remedy; empty if none was."""
    others = dict.fromkeys(("random", "initial"), "finetuning.random_max_epochs")
    remedies = others | {"pretrained": "finetuning.epochs"}
    found, names = [], name_models(results)
    for model in remedies.keys() & names.keys():
        runs = results["models"][model]["runs"]
        if count := sum(bool(run["improving"]) for run in runs):
            found.append((model, f"{count} of {len(runs)} runs of {names[model]}"))
    if not found:
        return ""
    found.sort(reverse=True)  # in the order of the rows
    return (
        f"Still improving when they ended: {', '.join(words for _, words in found)}. Their scores are lower than what "
        f"these models reach: raise {' and '.join(dict.fromkeys(remedies[model] for model, _ in found))}."
    )


def verdict(results: Mapping[str, Any]) -> str:
    """Return in one sentence which rows the pre-trained model beats, by how much, and whether chance explains it."""
    metric, heading = main_metric(results)
    reached = f"the pre-trained model reaches {_write_mean(results['models']['pretrained'][metric], heading)}"
    clauses = [f"By {heading.removesuffix(SHARE)} on {results['task']['name']}, {reached}"]
    compared = results["comparisons"].items()
    few = [name for name, found in compared if found.get("too_few")]
    chance = [name for name, found in compared if not found["beyond_chance"] and name not in few]
    beaten = [name for name, found in compared if found["beyond_chance"] and found["difference"] > 0]
    ahead = [name for name, found in compared if found["beyond_chance"] and found["difference"] < 0]
    if beaten:
        clauses.append(f"it beats {_list_rows(results, beaten)} beyond chance")
    if ahead:
        clauses.append(f"it is beaten by {_list_rows(results, ahead)} beyond chance")
    if chance:
        clauses.append(f"chance explains its difference from {_list_rows(results, chance, signed=True)}")
    if few:
        count = results["task"]["dev_examples"]
        rows = f"{count} dev examples are" if count > 1 else "one dev example is"
        others = _list_rows(results, few, signed=True)
        clauses.append(f"{rows} too few to tell chance from its difference from {others}")
    if "random" not in results["models"]:
        clauses.append("random weights were not compared")
    if len(results["models"]["pretrained"]["runs"]) == 1:
        clauses.append("a single run shows no spread over seeds")
    if any("±" in clause for clause in clauses):
        clauses.append(f"± is one standard error over {name_variation(results)}")
    return "; ".join(clauses) + "."


def name_variation(results: Mapping[str, Any]) -> str:
    """Return what the standard errors of the results are over."""
    has_seeds = any(len(model["runs"]) > 1 for model in results["models"].values())
    return "dev examples and seeds" if has_seeds else "dev examples"


def credit_sentence(results: Mapping[str, Any]) -> str:
    """Divide the gain over random weights between the initial embeddings and the steps; empty without both rows."""
    compared, (_, heading) = results["comparisons"], main_metric(results)
    if not {"random", "initial"} <= compared.keys():
        return ""
    whole, steps = (compared[model]["difference"] for model in ("random", "initial"))
    parts = (whole, whole - steps, steps)
    gain, counts, trained = (f"{'+' if part >= 0 else '-'}{format_metric(abs(part), heading)}" for part in parts)
    error = format_metric(compared["initial"]["standard_error"], heading)
    return (
        f"Of the {gain}{_unit(heading)} over random weights, {counts} are of the initial embeddings, which are counted "
        f"from the text, and {trained} ± {error} of the pre-training steps."
    )


def spread_sentence(results: Mapping[str, Any]) -> str:
    """Name the ± of the table; empty if it has none."""
    metrics, models = shown_metrics(results), results["models"].values()
    has_spread = any(model[metric]["standard_deviation"] > 0 for model in models for metric in metrics)
    return "In the table: mean ± standard deviation over the seeds." if has_spread else ""


def collapse_sentence(results: Mapping[str, Any]) -> str:
    """Say what a collapsed run is; empty if none collapsed."""
    runs = [run for model in results["models"].values() for run in model["runs"] if run["seed"] is not None]
    has_one = any(run["collapsed"] for run in runs)  # a baseline always is, and the table does not call it so
    return "A collapsed run says the same of every example." if has_one else ""


COMPARISON_NOTE = (
    "A difference is shown with its standard error, paired over the dev examples and seeds; chance explains a "
    "difference of at most two standard errors, or, where few examples differ, one that fails the exact paired test."
)


def tells_little(results: Mapping[str, Any]) -> bool:
    """Return whether there are too few dev examples to tell a difference from chance."""
    return any(found.get("too_few") for found in results.get("comparisons", {}).values())


def describe_words(results: Mapping[str, Any]) -> str:
    """Describe how the TF-IDF baseline was chosen; empty if there is none."""
    if "tfidf" not in results:
        return ""
    found = results["tfidf"]
    words = "single words" if found["longest"] == 1 else f"1 to {found['longest']} words"
    name = name_models(results)["tfidf"]
    if found["score"] is None:
        return f"{name}: {words}, defaults; {found['fitted_examples']:,} training rows are too few to choose by."
    return (
        f"{name}: {words}, C = {found['strength']:g} (1 / alpha of ridge regression), chosen by cross-validation on "
        f"{found['choosing_examples']:,} training rows, fitted on {found['fitted_examples']:,}. It reads whole texts."
    )


def interval_sentence(results: Mapping[str, Any]) -> str:
    """Describe how much the main metric of one run would vary with other examples; empty if no draw changed it.

    With too few examples the draws do not represent others, so it is empty as well.
    """
    interval = results["interval"]
    is_certain = interval["low"] == interval["high"]  # as when all are correct, which does not make the score certain
    if is_certain or tells_little(results):
        return ""
    _, heading = main_metric(results)
    low, high = (format_metric(interval[end], heading) for end in ("low", "high"))
    unit = "%" if heading.endswith(SHARE) else ""
    return (
        f"On other dev examples of the same kind, the {heading.removesuffix(SHARE)} of the run with seed "
        f"{interval['seed']} from pre-trained weights would lie between {low}{unit} and {high}{unit} "
        f"({interval['level']:.0%} bootstrap interval, {interval['resamples']:,} resamples)."
    )


def calibration_sentence(results: Mapping[str, Any]) -> str:
    """Describe what the temperatures of the pre-trained runs do to their probabilities; empty if there are none."""
    runs = results.get("calibration", {}).get("pretrained", ())
    if not runs:
        return ""
    low, high = (pick(run["temperature"] for run in runs) for pick in (min, max))
    before, after = (100 * sum(run[name] for run in runs) / len(runs) for name in ("error_before", "error_after"))
    if low == high == 1.0 and not any(any(run.get("biases", ())) for run in runs):
        return f"The probabilities are not calibrated: {runs[0]['rows']} dev examples are too few to choose by."
    temperatures = f"{low:.2f}" if f"{low:.2f}" == f"{high:.2f}" else f"{low:.2f} to {high:.2f}"
    biases = " and a bias is added for each class, both" if runs[0].get("biases") else ","
    return (
        f"Probabilities: the logits are divided by a temperature of {temperatures}{biases} chosen on these dev "
        f"examples. There the expected calibration error was {before:.1f} % and is {after:.1f} %."
    )


def _list_rows(results: Mapping[str, Any], models: Sequence[str], signed: bool = False) -> str:
    """List rows with their scores and their differences from the pre-trained model."""
    (metric, heading), names = main_metric(results), name_models(results)
    names["baseline"] = f"the {names['baseline']}"
    rows = []
    for model in models:
        difference, error = (results["comparisons"][model][name] for name in ("difference", "standard_error"))
        sign = ("+" if difference >= 0 else "-") if signed else ""
        spread = "" if results["comparisons"][model].get("too_few") else f" ± {format_metric(error, heading)}"
        distance = f"{sign}{format_metric(abs(difference), heading)}{spread}{_unit(heading)}"
        score = _write_mean(results["models"][model][metric], heading)
        rows.append(f"{names[model]} ({score}; {distance})" if signed else f"{names[model]} ({score}) by {distance}")
    return ", ".join(rows[:-1]) + (" and " if rows[1:] else "") + rows[-1]


def _write_mean(summary: Mapping[str, float], heading: str) -> str:
    return format_metric(summary["mean"], heading) + ("%" if heading.endswith(SHARE) else "")


def _unit(heading: str) -> str:
    return " points" if heading.endswith(SHARE) else ""
