"""Measure fine-tuned models on their task, and gather a whole pipeline's results into the report."""

import importlib.metadata
import json
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_bert_flow.config import PipelineConfig
from keras_bert_flow.conversion.model_directory import load_classifier
from keras_bert_flow.data.tasks import encode_texts, predict_probabilities, read_tokenizer
from keras_bert_flow.evaluation.report import Report, write_report
from keras_bert_flow.evaluation.results import RunPredictions, build_results, worst_errors
from keras_bert_flow.evaluation.summary import results_markdown
from keras_bert_flow.keys import evaluation_key, folder_digest
from keras_bert_flow.records.manifest import read_manifest
from keras_bert_flow.records.publish import Contents, publish
from keras_bert_flow.tasks.metrics import classification_metrics
from keras_bert_flow.tasks.tables import TaskTable, label_ids, label_names, read_table

PRETRAINED = "pretrained"
PACKAGES = ("keras", "jax", "tensorflow", "torch", "numpy", "tokenizers", "grain", "apache-beam", "prefect")


def evaluate_model(config: PipelineConfig, model: str | Path) -> dict[str, Any]:
    """Score one fine-tuned model directory on the task's dev table; see `tasks.metrics.classification_metrics`."""
    table = read_table(config.task.dev, **config.task.columns)
    names, probabilities = _predict(config, Path(model), table)
    return classification_metrics(label_ids(table, names), probabilities.argmax(axis=-1), len(names))


def write_evaluation(
    config: PipelineConfig,
    finetuned: str | Path,
    pretrained: str | Path,
    records: str | Path,
    output: str | Path,
    first_phase: str | Path | None = None,
) -> Path:
    """Publish a folder with `metrics.json`, `report.html`, `report.md` and `predictions/`; at once where it is there.

    Args:
        config: of the whole pipeline.
        finetuned: what `finetune` made; every model in it is loaded and asked for its predictions.
        pretrained: what `pretrain` made.
        records: what `build_records` made, for that.
        output: the folder.
        first_phase: what `pretrain` made before, where `pretrained` went on from it.
    """
    finetuned, pretrained, records = map(Path, (finetuned, pretrained, records))
    phases = ([] if first_phase is None else [Path(first_phase)]) + [pretrained]

    def build(work: Path) -> Contents:
        train = read_table(config.task.train, **config.task.columns, max_examples=config.finetuning.max_train_examples)
        dev = read_table(config.task.dev, **config.task.columns)
        names = label_names(train)
        runs = _predict_runs(config, finetuned, dev, work / "predictions")
        figures = [json.loads((phase / "metrics.json").read_text(encoding="utf-8")) for phase in phases]
        pretraining = figures[-1]
        dev_labels = label_ids(dev, names)
        task = {"name": config.task.name, "labels": list(names)}
        results = build_results(task, runs, label_ids(train, names), dev_labels, pretraining)
        if first_phase is not None:
            results["first_phase"] = figures[0]
        (work / "metrics.json").write_text(json.dumps(results, indent=1), encoding="utf-8")
        (work / "report.md").write_text(results_markdown(results), encoding="utf-8")
        report = Report(
            title=config.name,
            results=results,
            pretraining=pretraining,
            curves=_read_curves(finetuned, phases),
            counters=read_manifest(records).counters,
            stages=_describe_stages(records, phases, finetuned, figures, runs),
            config=config.model_dump(mode="json"),
            versions=_list_versions(),
            errors=worst_errors(dev, dev_labels, runs[PRETRAINED][0].probabilities, names),
        )
        write_report(work / "report.html", report)
        inputs = {"finetuned": folder_digest(finetuned), "records": folder_digest(records)}
        return Contents(config.model_dump(mode="json"), inputs)

    return publish(output, "evaluation", evaluation_key(config, finetuned, records), build)


def _predict(config: PipelineConfig, model: Path, table: TaskTable) -> tuple[tuple[str, ...], np.ndarray]:
    classifier = load_classifier(model)
    inputs = encode_texts(read_tokenizer(model), table.texts, table.text_pairs, config.finetuning.sequence_length)
    return tuple(classifier.labels), predict_probabilities(classifier, inputs, config.finetuning.batch_size)


def _predict_runs(
    config: PipelineConfig, finetuned: Path, dev: TaskTable, folder: Path
) -> dict[str, list[RunPredictions]]:
    """Ask every fine-tuned model, and keep what each answered as a table beside the results."""
    folder.mkdir()
    runs: dict[str, list[RunPredictions]] = {}
    for run_file in sorted(finetuned.glob("*/seed-*/run.json")):
        run = json.loads(run_file.read_text(encoding="utf-8"))
        names, probabilities = _predict(config, run_file.parent / "model", dev)
        runs.setdefault(run["start"], []).append(RunPredictions(run["seed"], probabilities, run["seconds"]))
        lines = [{"predicted": names[row.argmax()], "probability": round(float(row.max()), 6)} for row in probabilities]
        path = folder / f"{run['start']}-seed-{run['seed']}.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return runs


def _read_curves(finetuned: Path, phases: Sequence[Path]) -> dict[str, list[dict[str, Any]]]:
    names = ("Pre-training, first phase", "pretraining")[-len(phases) :]
    logs = {name: phase / "log.jsonl" for name, phase in zip(names, phases, strict=True)}
    for path in sorted(finetuned.glob("*/seed-*/log.jsonl")):
        logs[f"{path.parts[-3]}/{path.parts[-2].removeprefix('seed-')}"] = path
    return {name: [json.loads(line) for line in path.open(encoding="utf-8")] for name, path in logs.items()}


def _describe_stages(
    records: Path,
    phases: Sequence[Path],
    finetuned: Path,
    figures: Sequence[Mapping[str, Any]],
    runs: Mapping[str, list],
) -> list[dict[str, Any]]:
    seconds = {phase: figure["seconds"] for phase, figure in zip(phases, figures, strict=True)} | {
        finetuned: sum(run.seconds for group in runs.values() for run in group),
    }
    rows = []
    for folder in (records, *phases, finetuned):
        manifest = read_manifest(folder)
        rows.append(
            {"stage": manifest.stage, "key": manifest.key, "folder": folder.name, "seconds": seconds.get(folder)}
        )
    return rows


def _list_versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue  # an extra that this installation does without
    return versions
