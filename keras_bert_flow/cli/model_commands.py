"""Commands from records to the report, and the one that runs the whole walk."""

from json import dumps
from pathlib import Path
from typing import Annotated

import typer

from keras_bert_flow.cli.app import app
from keras_bert_flow.cli.builtin_files import fill_builtin_task
from keras_bert_flow.cli.options import (
    ChosenBackend,
    ConfigFile,
    OutputAnywhere,
    Overrides,
    choose_backend,
    load,
    stopping_for_later,
)
from keras_bert_flow.config.pipeline import PipelineConfig, with_grid
from keras_bert_flow.evaluation.questions import read_pairs, read_questions
from keras_bert_flow.local_paths import find_address, name_path
from keras_bert_flow.prediction.load import FINE_TUNED
from keras_bert_flow.preflight.distillation import check_distillation_stage
from keras_bert_flow.preflight.inputs_elsewhere import fetch_inputs
from keras_bert_flow.preflight.models import check_asked_model
from keras_bert_flow.preflight.run import check_run
from keras_bert_flow.preflight.stages import check_finetuning_stage, check_pretraining_stage, check_report_stage
from keras_bert_flow.progress import counting_progress
from keras_bert_flow.stores.fetching import fetch
from keras_bert_flow.stores.publishing import made_at
from keras_bert_flow.terminal import show, show_json
from keras_bert_flow.training.finetuning.task_tables import fetch_tables


@app.command()
def pretrain(
    records: Annotated[Path, typer.Option(help="What `kbf records` made.")],
    output: OutputAnywhere,
    initial_model: Annotated[
        Path | None,
        typer.Option(help="Model directory to continue from, of the shape of `model`; default `initial_model`."),
    ] = None,
    config: ConfigFile = None,
    set: Overrides = None,
    backend: ChosenBackend = None,
) -> None:
    """Pre-train a model, resuming from the newest checkpoint of a run that was stopped."""
    with stopping_for_later(), made_at(output, together=True) as place:
        settings = choose_backend(load(config, set), backend)
        initial_model = initial_model or (settings.initial_model and Path(settings.initial_model))
        check_pretraining_stage(settings, records, initial_model, place)
        from keras_bert_flow.backends.memory import keep_freed_memory
        from keras_bert_flow.progress import training_progress
        from keras_bert_flow.training.pretraining.pretrain import pretrain as run

        keep_freed_memory()
        with training_progress(settings.pretraining.total_steps) as report:
            run(settings, records, place, report, initial_model=initial_model)
    show(name_path(output))


@app.command()
def distill(
    records: Annotated[Path, typer.Option(help="What `kbf records` made.")],
    teacher: Annotated[Path, typer.Option(help="Model directory with a masked-LM head, ours or Hugging Face's.")],
    output: OutputAnywhere,
    config: ConfigFile = None,
    set: Overrides = None,
    backend: ChosenBackend = None,
) -> None:
    """Train a smaller model on what a larger one guesses: the section `distillation`."""
    with stopping_for_later(), made_at(output, together=True) as place:
        settings = choose_backend(load(config, set), backend)
        check_distillation_stage(settings, records, teacher, place)
        from keras_bert_flow.backends.memory import keep_freed_memory
        from keras_bert_flow.progress import training_progress
        from keras_bert_flow.training.distillation.distill import distill as run

        keep_freed_memory()
        with training_progress(settings.distillation.total_steps) as report:
            run(settings, records, teacher, place, report)
    show(name_path(output))


@app.command()
def finetune(
    model: Annotated[Path, typer.Option(help="Model directory, ours or Hugging Face's.")],
    task: Annotated[Path, typer.Option(help="Configuration file with the sections `task` and `finetuning`.")],
    output: OutputAnywhere,
    grid: Annotated[
        bool, typer.Option("--grid", help="Choose rate, epochs and batch size by the dev score: `finetuning.grid`.")
    ] = False,
    new_head: Annotated[
        bool, typer.Option("--new-head", help="Replace the model's head, if it has one: `finetuning.new_head`.")
    ] = False,
    set: Overrides = None,
    backend: ChosenBackend = None,
) -> None:
    """Fine-tune a model on a task once per seed, and the same architecture from random weights for comparison."""
    with stopping_for_later(), made_at(output) as place:
        settings = load(task, set, {"finetuning.new_head": new_head or None})
        settings = fetch_tables(choose_backend(settings, backend))
        data = check_finetuning_stage(settings, model, place)
        settings = fill_builtin_task(settings)
        if grid:
            settings = with_grid(settings)
        from keras_bert_flow.backends.memory import keep_freed_memory
        from keras_bert_flow.evaluation.grid_table import grid_text, read_grid
        from keras_bert_flow.progress import training_progress
        from keras_bert_flow.training.finetuning.finetune import finetune as run

        keep_freed_memory()

        with training_progress() as report:
            run(settings, model, place, report, data=data)
        if table := read_grid(place):
            show(grid_text(table), keep="\n")
    show(name_path(output))


@app.command()
def evaluate(
    task: Annotated[Path | None, typer.Option(help="Configuration file with the section `task`.")] = None,
    model: Annotated[Path | None, typer.Option(help="A model directory: fine-tuned, or a masked LM.")] = None,
    predictions: Annotated[
        Path | None, typer.Option(help="File of predictions to score instead, in the task's official format or .jsonl.")
    ] = None,
    minimal_pairs: Annotated[
        Path | None,
        typer.Option(help="File of minimal pairs in BLiMP's format, to score a masked LM on without a task: .jsonl."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Score only the first so many pairs of each phenomenon (UID).")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    set: Overrides = None,
    backend: ChosenBackend = None,
) -> None:
    """Score one fine-tuned model, or a file of predictions, on the task's dev table; or a masked LM on minimal pairs.

    A minimal pair is an acceptable and an unacceptable sentence. The accuracy is how often the first has the higher
    pseudo-log-likelihood.
    """
    _check_scored(task, model, predictions, minimal_pairs, limit, set)
    if minimal_pairs is not None:
        choose_backend(PipelineConfig(), backend)
        _print_pairs(model, minimal_pairs, limit, json)
        return
    if predictions is not None:
        from keras_bert_flow.evaluation.prediction_files import score_predictions

        print_scores(score_predictions(fill_builtin_task(load(task, set)), predictions), json)
        return
    settings = choose_backend(load(task, set), backend)
    check_asked_model(model, FINE_TUNED, {}, [], None)
    settings = fill_builtin_task(settings)
    questions = read_questions(settings, model)
    from keras_bert_flow.evaluation.evaluate import evaluate_model

    print_scores(evaluate_model(settings, model, questions), json)


def print_scores(scores: dict[str, float], as_json: bool = False) -> None:
    if as_json:
        show_json(dumps(scores))
        return
    for name, value in scores.items():
        show(f"{name}: {value:.4f}" if isinstance(value, float) else f"{name}: {value}")


def _check_scored(
    task: Path | None,
    model: Path | None,
    predictions: Path | None,
    minimal_pairs: Path | None,
    limit: int | None,
    overrides: list[str] | None,
) -> None:
    """Raise ValueError unless the options of `kbf evaluate` go together."""
    if minimal_pairs is not None:
        others = {"--task": task, "--predictions": predictions, "--set": overrides}
        given = [name for name, value in others.items() if value]
        if given or model is None:
            raise ValueError(
                "--minimal-pairs must come with --model, and without a task. Received: "
                f"{', '.join(given) or 'no --model'}. {'Leave it out.' if given else 'Name a masked LM.'}"
            )
        return
    if task is None:
        raise ValueError("There must be something to score on. Received: neither --task nor --minimal-pairs. Give one.")
    if limit is not None:
        raise ValueError(f"--limit must come with --minimal-pairs. Received: --limit {limit} without. Leave it out.")
    if (model is None) == (predictions is None):
        raise ValueError("What to score must be one of --model and --predictions. Received: neither or both. Give one.")


def _print_pairs(model: Path, path: Path, limit: int | None, as_json: bool) -> None:
    encoded = read_pairs(model, path, limit)
    from keras_bert_flow.evaluation.minimal_pairs import count_masked_copies, evaluate_minimal_pairs
    from keras_bert_flow.evaluation.pair_tables import pairs_text

    with counting_progress(count_masked_copies(encoded)) as advance:
        results = evaluate_minimal_pairs(model, path, limit, advance=advance, encoded=encoded)
    if as_json:
        show_json(dumps(results, indent=1))
    else:
        show(pairs_text(results), keep="\n")


@app.command()
def report(
    finetuned: Annotated[Path, typer.Option(help="What `kbf finetune` made.")],
    pretrained: Annotated[Path, typer.Option(help="What `kbf pretrain` or `kbf distill` made.")],
    records: Annotated[Path, typer.Option(help="What `kbf records` made.")],
    output: OutputAnywhere,
    earlier: Annotated[
        list[Path] | None,
        typer.Option(help="What `kbf pretrain` made before: a first phase, or the teacher. Repeatable, in order."),
    ] = None,
    config: ConfigFile = None,
    set: Overrides = None,
    backend: ChosenBackend = None,
) -> None:
    """Measure every fine-tuned model and write metrics.json and report.html."""
    with made_at(output) as place:
        settings = fetch_tables(choose_backend(load(config, set), backend))
        files = check_report_stage(settings, finetuned, pretrained, records, earlier or (), place)
        settings = fill_builtin_task(settings)
        from keras_bert_flow.evaluation.evaluate import write_evaluation

        write_evaluation(settings, finetuned, pretrained, records, place, earlier or (), files)
    show(f"{name_path(output)}/report.html")


@app.command()
def run(
    config: Annotated[Path, typer.Argument(help="Configuration file; see `kbf configs list`.")],
    set: Overrides = None,
    backend: ChosenBackend = None,
    plan: Annotated[bool, typer.Option("--plan", help="Print stages, keys and estimates, and run nothing.")] = False,
) -> None:
    """Run the whole pipeline, from text to report, as the Prefect flow; finished stages are not run again."""
    settings = fetch_inputs(choose_backend(load(config, set), backend))
    task = check_run(settings, packages=["prefect"])
    is_elsewhere = find_address(settings.runs) is not None
    if settings.beam or is_elsewhere:
        from beam_jobs.running import check_options
        from beam_jobs.storage import BeamStorage, check_reachable

        check_options(settings.beam)
        if is_elsewhere:
            BeamStorage(settings.beam)  # its filesystems take their options
            check_reachable(settings.runs)
    if plan:
        from flows.plan import describe_plan
        from flows.settling import make_paths_absolute

        show(describe_plan(make_paths_absolute(settings), task), keep="\n")
        return
    chosen = settings.backend
    from flows.local import run_locally

    path = run_locally(config, set or (), chosen, show)
    show((fetch(path.parent) / "report.md").read_text(encoding="utf-8"), keep="\n")
    show(f"Report: {name_path(path)}")
