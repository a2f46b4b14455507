"""Compare several evaluated runs in one table: the settings that differ, scores and costs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
MOST_SETTINGS = 12  # columns of settings that differ; more are another configuration, not another setting
FIGURES = {
    "masked_lm_loss": ("masked-LM loss", ".3f"),
    "parameters": ("parameters", ",d"),
    "seconds": ("pre-training, s", ",.0f"),
}


def tabulate_runs(runs: Mapping[str, Path]) -> list[list[str]]:
    """Return a header row, and one row per run.

    Args:
        runs: label → folder that `kbf report` has published.
    Raises:
        FileNotFoundError, ValueError: a folder is not one of these, or is damaged.
    """
    found = [_read(folder) for folder in runs.values()]
    settings = [flatten(config) for config, _ in found]
    names = sorted({name for flat in settings for name in flat})
    differing = [name for name in names if len({repr(flat.get(name)) for flat in settings}) > 1 and not _is_place(name)]
    shown = differing if len(differing) <= MOST_SETTINGS else []
    figures = {key: what for key, what in FIGURES.items() if any(key in results["pretraining"] for _, results in found)}
    headings = dict.fromkeys(_heading(results) for _, results in found)
    models: dict[str, str] = {}
    for _, results in found:
        models |= {model: name for model, name in name_models(results).items() if model != "baseline"}
    columns = [(model, heading) for heading in headings for model in models]
    header = ["run", *shown, *(f"{models[model]}, {heading}" for model, heading in columns), "runs"]
    rows = [[*header, *(name for name, _ in figures.values())]]
    for label, flat, (_, results) in zip(runs, settings, found, strict=True):
        scores = [_score(results, model) if heading == _heading(results) else "" for model, heading in columns]
        count = str(len(results["models"]["pretrained"]["runs"]))
        told = ["-" if flat.get(name) is None else as_yaml(flat[name]) for name in shown]
        values = [_figure(results["pretraining"], key, spec) for key, (_, spec) in figures.items()]
        rows.append([label, *told, *scores, count, *values])
    return rows


def runs_text(runs: Mapping[str, Path]) -> str:
    """Return the table as aligned plain text, for the terminal."""
    return f"{align(tabulate_runs(runs))}\n\n{NOTE}"


def runs_markdown(runs: Mapping[str, Path]) -> str:
    """Return the table as Markdown."""
    return f"{as_markdown(tabulate_runs(runs))}\n\n{NOTE}"


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
