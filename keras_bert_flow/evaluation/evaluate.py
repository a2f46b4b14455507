"""Evaluate fine-tuned models on their task, and collect the results of a whole pipeline in the report."""

import importlib.metadata
import json
import platform
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from keras_bert_flow.config.finetuning import kind_of
from keras_bert_flow.config.pipeline import PipelineConfig, resolve_precision
from keras_bert_flow.console.job_progress import JobPart, expect, note, plan_parts
from keras_bert_flow.console.terminal import as_markdown, escape_markdown
from keras_bert_flow.evaluation.minimal_pairs import count_masked_copies, evaluate_minimal_pairs
from keras_bert_flow.evaluation.page import gather_costs
from keras_bert_flow.evaluation.questions import (
    DEV,
    Questions,
    read_pairs,
    read_questions,
    require_kind,
    write_predictions,
)
from keras_bert_flow.evaluation.report import Report, make_data_card, write_report
from keras_bert_flow.evaluation.results import (
    PRETRAINED,
    WORDS,
    RunPredictions,
    build_results,
    score_models,
    worst_errors,
)
from keras_bert_flow.evaluation.summary import (
    calibration_sentence,
    collapse_sentence,
    credit_sentence,
    extra_results,
    improving_sentence,
    remarks_markdown,
    result_rows,
    spread_sentence,
    verdict,
)
from keras_bert_flow.evaluation.tables import (
    COARSE,
    CURVE_NOTE,
    GRID_FILE,
    NOTE,
    RANDOM_GRID_FILE,
    build_label_curve,
    curve_rows,
    grid_rows,
    other_seconds,
    pairs_rows,
    read_grid,
)
from keras_bert_flow.files.documents import read_json_object
from keras_bert_flow.files.inputs import NOTHING_HELD, hold
from keras_bert_flow.files.paths import check_local
from keras_bert_flow.prediction.load import name_outputs
from keras_bert_flow.prediction.predictors import Predictor
from keras_bert_flow.results.lineage import find_source
from keras_bert_flow.results.manifest import read_manifest
from keras_bert_flow.results.publishing import Contents, publish
from keras_bert_flow.results.stages.models import DISTILLATION, PRETRAINING
from keras_bert_flow.results.stages.tasks import EVALUATION, drop_copies, evaluation_inputs, evaluation_key
from keras_bert_flow.tasks.baselines.word_baseline import answer_from_words
from keras_bert_flow.tasks.core.task import Task
from keras_bert_flow.tasks.registry import KINDS
from keras_bert_flow.training.finetuning.task_data import TaskFiles, fetch_tables, read_task_files, read_unreachable
from keras_bert_flow.training.loop.logs import read_log

ONE_TEXT, IN_FILES = '"a text"', "--input QUESTIONS --output answers.jsonl"  # arguments of `kbf predict`
SEQUENCES = "sequences"
SCORING_PAIRS, ASKING = JobPart("scoring minimal pairs", "masked sentences"), JobPart("asking the models", SEQUENCES)
FITTING_WORDS, WRITING = JobPart("fitting the word baseline"), JobPart("writing")
MODEL = "model"  # the model directory in a folder of pre-training
COSTS = ("trained_parameters", "parameters", "peak_bytes")  # costs of a run in `run.json`
PACKAGES = ("keras", "jax", "tensorflow", "torch", "numpy", "tokenizers", "grain", "apache-beam", "prefect")


def evaluate_model(
    config: PipelineConfig, model: str | Path, questions: Mapping[str, Questions] | None = None
) -> dict[str, float]:
    """Score one fine-tuned model directory on the task's dev file, and on further ones; see `score` of its task.

    The configuration defines where and how the files are read, the model defines the labels; if its outputs have no
    names of their own, `task.labels` names them.

    Args:
        questions: what `read_questions` returns for this configuration and model, if already read.
    Returns:
        Metric → value on the dev file; the metrics on another file begin with its name, as in `mismatched_accuracy`.
    Raises:
        FileNotFoundError, ValueError: as for `read_questions`, or the weights are unusable.
    """
    questions = questions or read_questions(config, model)
    plan_parts(ASKING)
    expect(SEQUENCES, sum(len(asked.features) for asked in questions.values()))
    note(ASKING, 0)
    predictor = Predictor(model)
    predictor.task = name_outputs(model, predictor.task, getattr(config.task, "labels", ()))
    scores: dict[str, Any] = {}
    for name, asked in questions.items():
        predictions = predictor.answer_encoded(asked.features, asked.examples, follow=_count)
        found = predictor.task.score(asked.examples, predictions)
        scores |= found if name == DEV else {f"{name}_{metric}": value for metric, value in found.items()}
    return scores


def write_evaluation(
    config: PipelineConfig,
    finetuned: str | Path,
    pretrained: str | Path,
    records: str | Path,
    output: str | Path,
    earlier: Sequence[str | Path] = (),
    files: TaskFiles | None = None,
) -> Path:
    """Publish a folder with `metrics.json`, `report.html`, `report.md` and `predictions/`; skipped if it exists.

    Args:
        config: configuration of the whole pipeline.
        finetuned: folder made by `finetune`; every model in it is loaded and used for prediction.
        pretrained: folder made by `pretrain` or `distill`.
        records: records of that pre-training, made by `build_records`.
        output: the folder.
        earlier: folders made by `pretrain` before, from which `pretrained` continued or was distilled, in order.
        files: what `read_task_files` returns for this configuration, if already read.
    Raises:
        ValueError: `output` is not on a local disk.
    Example:
        >>> config = kbf.load_config("run.yaml")
        >>> made = "runs/finetuning/1", "runs/pretraining/1", "records"
        >>> folder = kbf.write_evaluation(config, *made, "out/evaluation")
        >>> (folder / "report.html").is_file()
        True
    """
    check_local(output)
    finetuned, pretrained, records = map(Path, (finetuned, pretrained, records))
    phases = [*map(Path, earlier), pretrained]

    config = fetch_tables(resolve_precision(config))
    tables = [config.task.train, config.task.dev, *config.task.extra_dev.values()]
    pairs_file = config.evaluation.minimal_pairs
    inputs = hold(finetuned, records, *phases, *tables, *([pairs_file] if pairs_file else []))
    key = evaluation_key(config, finetuned, records, phases)

    def build(work: Path) -> Contents:
        read = files or read_task_files(config)
        task, dev, extra = read.task, read.dev, read.extra_dev
        training = drop_copies(config.task.train, read.training)
        plan_parts(*[SCORING_PAIRS] * (config.evaluation.minimal_pairs is not None), ASKING, FITTING_WORDS, WRITING)
        pairs = _score_minimal_pairs(config, pretrained)
        dev_sets = {DEV: dev} | extra
        predicted = _predict_runs(task, finetuned, dev_sets, work / "predictions")
        note(FITTING_WORDS, 0)
        words = answer_from_words(task, training, dev_sets, config.seed)
        if words is not None:
            for name, predictions in words.predictions.items():
                predicted[name][WORDS] = [RunPredictions(None, predictions, 0.0)]
                write_predictions(work / "predictions", WORDS + _ending(name), task, dev_sets[name], predictions)
        note(WRITING, 0)
        runs = predicted[DEV]
        figures = [read_json_object(phase / "metrics.json") for phase in phases]
        results = build_results(config.task.name, task, training, dev, runs, figures[-1])
        for name, examples in extra.items():
            scored = score_models(task, training, examples, predicted[name])
            results.setdefault("extra_dev", {})[name] = {"examples": len(examples), "models": scored}
        if words is not None:
            results["tfidf"] = words.settings
        titles = _name_phases(phases)
        if earlier:
            results["earlier"] = dict(zip(titles[:-1], figures[:-1], strict=True))
        if grid := read_grid(finetuned):
            results["grid"] = grid
        if grid := read_grid(finetuned, RANDOM_GRID_FILE):
            results["grid_random"] = grid
        calibrated = {start: [run.calibration for run in group if run.calibration] for start, group in runs.items()}
        if calibration := {start: found for start, found in calibrated.items() if found}:
            results["calibration"] = calibration
        if unreachable := read_unreachable(finetuned):
            results["unreachable"] = unreachable
        if remarks := dict.fromkeys((*read.remarks, *list_shortened(finetuned, phases))):
            results["remarks"] = list(remarks)
        counters = read_manifest(finetuned).counters
        if texts := {name: found for name, found in counters.items() if isinstance(found, Mapping)}:
            results["texts"] = texts  # by file; an earlier version has none
        if curve := build_label_curve(finetuned, task, training, dev, config.seed):
            results["label_curve"] = curve
        results |= pairs
        (work / "metrics.json").write_text(json.dumps(results, indent=1), encoding="utf-8")
        (work / "report.md").write_text(_write_tables(results), encoding="utf-8")
        models = finetuned.glob(f"{PRETRAINED}/seed-*/model")
        first = min(models, key=lambda model: int(model.parent.name.removeprefix("seed-")))
        report = Report(
            title=config.name,
            results=results,
            pretraining=figures[-1],
            pretraining_title=titles[-1],
            curves=_read_curves(finetuned, dict(zip((*titles[:-1], "pretraining"), phases, strict=True))),
            data=make_data_card(task, {"training": read.training} | dev_sets, records),
            counters=read_manifest(records).counters,
            stages=_gather_stages(records, phases, finetuned, figures, runs),
            config=config.model_dump(mode="json"),
            versions=_list_versions(),
            usage=describe_usage(first, kind_of(config.task), config.backend),
            errors=worst_errors(task, dev, runs[PRETRAINED][0].predictions),
        )
        write_report(work / "report.html", report)
        return Contents(config.model_dump(mode="json"), evaluation_inputs(finetuned, records, phases))

    inputs = inputs | (files.inputs if files else NOTHING_HELD)
    return publish(output, EVALUATION.name, key, build, inputs=inputs, revision=EVALUATION.revision)


def describe_usage(model: Path, kind: str, backend: str) -> list[str]:
    """Return shell commands and Python code, one block each.

    Args:
        model: the fine-tuned model directory to use.
        kind: kind of its task.
        backend: backend of the run.
    """
    folder = shlex.quote(str(model))
    question = IN_FILES if KINDS.find(kind).is_asked_in_files else ONE_TEXT
    lines = [
        ("this run once more, with the configuration below", f"kbf run mine.yaml --backend {backend}"),
        ("ask the model", f"kbf predict --model {folder} {question}"),
        ("measure it on another table", f"kbf evaluate --config mine.yaml --set task.dev=OTHER --model {folder}"),
        ("for onnxruntime, TensorFlow Serving or phones", f"kbf export {folder} served --format onnx"),
        ("for KerasHub, or google-research/bert", f"kbf convert {folder} converted --format kerashub"),
    ]
    commands = "\n\n".join(f"# {what}\n{command}" for what, command in lines)
    python = f"""import keras_bert_flow
keras_bert_flow.load({str(model)!r}).predict(["a text"])  # on TensorFlow, JAX or PyTorch

import transformers  # which class it is, README.md of the folder says
transformers.AutoTokenizer.from_pretrained({str(model)!r})"""
    return [commands, python]


def _predict_runs(
    task: Task, finetuned: Path, dev_sets: Mapping[str, Sequence[Any]], folder: Path
) -> dict[str, dict[str, list[RunPredictions]]]:
    """Predict with every fine-tuned model, and write the predictions to a folder; return dev set → start → runs."""
    folder.mkdir()
    run_files = sorted(finetuned.glob("*/seed-*/run.json"))
    note(ASKING, 0)
    field = f"dev_{task.main_metric}"
    predicted: dict[str, dict[str, list[RunPredictions]]] = {name: {} for name in dev_sets}
    predictor = None
    for run_file in run_files:
        run, model = read_json_object(run_file), run_file.parent / "model"
        if predictor is None:
            predictor = Predictor(model)
            require_kind(task, predictor.task, model)
            encoded = {name: predictor.encode(examples) for name, examples in dev_sets.items()}
            expect(SEQUENCES, len(run_files) * sum(map(len, encoded.values())))
        else:
            predictor.take_weights(model)
        scores = tuple(line[field] for line in read_log(run_file.parent) if field in line)
        costs, calibration = {name: run[name] for name in COSTS if name in run}, run.get("calibration")
        for name, examples in dev_sets.items():
            try:
                predictions = predictor.answer_encoded(encoded[name], examples, follow=_count)
            except ValueError as error:
                raise ValueError(f"{model}: {error}") from None
            of_dev = (scores, costs, calibration) if name == DEV else ()
            found = RunPredictions(run["seed"], predictions, run["seconds"], *of_dev)
            predicted[name].setdefault(run["start"], []).append(found)
            file = f"{run['start']}-seed-{run['seed']}{_ending(name)}"
            write_predictions(folder, file, task, examples, predictions)
    return predicted


def list_shortened(finetuned: Path, phases: Sequence[Path] = ()) -> list[str]:
    """Return a line for each pre-training that `pretraining.minutes` cut, and each run that `finetuning.minutes` did.

    Args:
        phases: folders of pre-training or distillation, of which only the former have a limit of time.
    """
    lines = []
    for name, folder in zip(_name_phases(phases), phases, strict=True):
        settings = read_manifest(folder).config.get("pretraining", {})
        if settings.get("minutes") is None:
            continue
        steps, total_steps = read_json_object(folder / "metrics.json")["steps"], settings["total_steps"]
        if steps < total_steps:
            lines.append(f"{name}: `pretraining.minutes` cut the training from {total_steps:,} to {steps:,} steps.")
    for run_file in sorted(finetuned.glob("*/seed-*/run.json")):
        if found := read_json_object(run_file).get("shortened"):
            name, (steps, total_steps) = f"{run_file.parent.parent.name}/{run_file.parent.name}", found
            lines.append(f"{name}: `finetuning.minutes` cut its training from {total_steps:,} to {steps:,} steps.")
    return lines


def _ending(dev_set: str) -> str:
    return "" if dev_set == DEV else f"-{dev_set}"


def _score_minimal_pairs(config: PipelineConfig, pretrained: Path) -> dict[str, Any]:
    """Return the results on minimal pairs; empty if the configuration names none."""
    settings = config.evaluation
    if settings.minimal_pairs is None:
        return {}
    model, path, limit = pretrained / MODEL, settings.minimal_pairs, settings.minimal_pairs_limit
    encoded = read_pairs(model, path, limit)
    expect(SCORING_PAIRS.unit, count_masked_copies(encoded))
    scored = partial(note, SCORING_PAIRS)
    return {"minimal_pairs": evaluate_minimal_pairs(model, path, limit, advance=scored, encoded=encoded)}


def _count(batches: Iterable[tuple[Any, int]]) -> Iterator[tuple[Any, int]]:
    """Yield batches of (rows, width), and report each when it has been predicted."""
    for rows, width in batches:
        yield rows, width
        note(ASKING, len(rows))


def _write_tables(results: Mapping[str, Any]) -> str:
    tables = [f"**{escape_markdown(verdict(results))}**", as_markdown(result_rows(results))]
    sentences = (spread_sentence, collapse_sentence, credit_sentence, improving_sentence, calibration_sentence)
    tables += filter(None, [sentence(results) for sentence in sentences])
    for name, other in extra_results(results).items():
        tables.append(f"On {escape_markdown(name)}:\n\n{as_markdown(result_rows(other))}")
    if curve := results.get("label_curve"):
        tables.append(f"{as_markdown(curve_rows(curve))}\n\n{CURVE_NOTE}")
    if grid := results.get("grid"):
        tables.append(f"{as_markdown(grid_rows(grid))}\n\n{NOTE}")
    if grid := results.get("grid_random"):
        tables.append(f"From random weights:\n\n{as_markdown(grid_rows(grid))}\n\n{NOTE}")
    tables += remarks_markdown(results)
    if pairs := results.get("minimal_pairs"):
        tables.append(as_markdown(pairs_rows(pairs, COARSE)))
    return "\n\n".join(tables)


def _name_phases(phases: Sequence[Path]) -> list[str]:
    stages = [read_manifest(folder).stage for folder in phases]
    last = len(stages) - 1 - stages[::-1].index(PRETRAINING.name) if PRETRAINING.name in stages else None
    names = {DISTILLATION.name: "Distillation", PRETRAINING.name: "Pre-training, first phase"}
    return ["Pre-training" if number == last else names[stage] for number, stage in enumerate(stages)]


def _read_curves(finetuned: Path, phases: Mapping[str, Path]) -> dict[str, list[dict[str, Any]]]:
    logs = dict(phases)
    for path in sorted(finetuned.glob("*/seed-*/log.jsonl")):
        logs[f"{path.parts[-3]}/{path.parts[-2].removeprefix('seed-')}"] = path.parent
    return {name: read_log(folder) for name, folder in logs.items()}


def _gather_stages(
    records: Path,
    phases: Sequence[Path],
    finetuned: Path,
    figures: Sequence[Mapping[str, Any]],
    runs: Mapping[str, list],
) -> list[dict[str, Any]]:
    vocabulary = find_source(records, "vocabulary")
    seconds: dict[Path, float | None] = dict.fromkeys([*([vocabulary] if vocabulary else []), records])
    seconds |= {phase: figure["seconds"] for phase, figure in zip(phases, figures, strict=True)}
    others = sum(other_seconds(read_grid(finetuned, name)) for name in (GRID_FILE, RANDOM_GRID_FILE))
    return gather_costs(seconds | {finetuned: others + sum(run.seconds for group in runs.values() for run in group)})


def _list_versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that compute a report."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue  # an extra that is not installed
    return versions
