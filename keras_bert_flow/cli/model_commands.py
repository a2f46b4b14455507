"""Commands that pre-train, distil, fine-tune and evaluate, and write the report."""

from collections.abc import Sequence
from json import dumps
from pathlib import Path
from typing import Annotated, Any

import typer

from keras_bert_flow.checks.run import check_distillation_stage
from keras_bert_flow.checks.stages import (
    check_augmentation_stage,
    check_finetuning_stage,
    check_pretraining_stage,
    check_report_stage,
)
from keras_bert_flow.cli.application import app
from keras_bert_flow.cli.options import (
    OUTPUT_ANYWHERE,
    ChosenBackend,
    ConfigFile,
    ConfigOrTask,
    OldTask,
    OutputAnywhere,
    Overrides,
    ask_finetuned,
    ask_pretrained,
    beside,
    carry,
    choose_backend,
    choose_file,
    fill_builtin_task,
    find_finetuned,
    fix_backend,
    following,
    inside,
    load,
    require_file,
    say_next,
    stopping_for_later,
)
from keras_bert_flow.config.finetuning import GridConfig
from keras_bert_flow.console.progress import counting_progress, training_progress, working
from keras_bert_flow.console.terminal import show, show_json
from keras_bert_flow.conversion.directory import check_model_directory
from keras_bert_flow.evaluation.questions import read_pairs, read_questions
from keras_bert_flow.files.outputs import MANIFEST
from keras_bert_flow.files.paths import name_path
from keras_bert_flow.prediction.load import FINE_TUNED, check_request
from keras_bert_flow.results.stages.tasks import TABLE
from keras_bert_flow.stores.publishing import made_at
from keras_bert_flow.training.finetuning.task_data import fetch_tables

MODEL = "model"  # the model directory within a folder of pre-training


@app.command()
def pretrain(
    records: Annotated[Path, typer.Option(help="Output of `kbf records`.")],
    output: OutputAnywhere,
    initial_model: Annotated[
        Path | None,
        typer.Option(help="Model directory to continue from, of the shape in `model`. Default: `initial_model`."),
    ] = None,
    config: ConfigFile = None,
    set: Overrides = None,
    backend: ChosenBackend = None,
) -> None:
    """Pre-train a model, resuming from the newest checkpoint of a run that was stopped."""
    with stopping_for_later(), made_at(output, together=True) as place:
        settings = choose_backend(load(config, set), backend)
        initial_model = initial_model or (Path(settings.initial_model) if settings.initial_model else None)
        folder = check_pretraining_stage(settings, records, initial_model, place)
        steps = settings.pretraining.total_steps
        with working(f"Pre-training for {steps:,} steps: loading Keras on {settings.backend}"):
            from keras_bert_flow.backends.runtime import keep_freed_memory
            from keras_bert_flow.training.pretraining.pretrain import pretrain as run

        keep_freed_memory()
        with training_progress(steps) as report:
            run(settings, folder, place, report, initial_model=initial_model)
        asking = ask_pretrained(place / MODEL, inside(output, MODEL))
    show(name_path(output))
    _say_finetuning(output, asking, config, set, backend)


@app.command()
def distill(
    records: Annotated[Path, typer.Option(help="Output of `kbf records`.")],
    teacher: Annotated[Path, typer.Option(help="Model directory with a masked-LM head, ours or Hugging Face's.")],
    output: OutputAnywhere,
    config: ConfigFile = None,
    set: Overrides = None,
    backend: ChosenBackend = None,
) -> None:
    """Distil a smaller model from a teacher, as set in the section `distillation`."""
    with stopping_for_later(), made_at(output, together=True) as place:
        settings = choose_backend(load(config, set), backend)
        folder = check_distillation_stage(settings, records, teacher, place)
        steps = settings.needed_distillation.total_steps
        with working(f"Distillation in {steps:,} steps: loading Keras on {settings.backend}"):
            from keras_bert_flow.backends.runtime import keep_freed_memory
            from keras_bert_flow.training.distillation import distill as run

        keep_freed_memory()
        with training_progress(steps) as report:
            run(settings, folder, teacher, place, report)
        asking = ask_pretrained(place / MODEL, inside(output, MODEL))
    show(name_path(output))
    _say_finetuning(output, asking, config, set, backend)


@app.command()
def augment(
    model: Annotated[Path, typer.Option(help="Model directory with a masked-LM head, ours or Hugging Face's.")],
    output: OutputAnywhere,
    config: ConfigOrTask = None,
    task: OldTask = None,
    set: Overrides = None,
    backend: ChosenBackend = None,
) -> None:
    """Write a training table with copies of its rows in which words are replaced; `augmentation` has defaults."""
    config = require_file(config, task)
    with stopping_for_later(), made_at(output) as place:
        settings = fetch_tables(choose_backend(load(config, set), backend))
        examples = check_augmentation_stage(settings, model, place)
        settings = fill_builtin_task(settings)
        with following(f"Augmenting {settings.task.train} on {settings.backend}", place):
            from keras_bert_flow.training.augmentation import augment as run

            run(settings, model, place, examples)
    show(name_path(output))
    changed = [*(set or ()), f"task.train={inside(output, TABLE)}", "augmentation=null"]
    changed += ["finetuning.max_train_examples=null"] if settings.finetuning.max_train_examples else []
    place_of_models = beside(output, "finetuned")
    say_next("finetune", *carry(config, changed, None, backend), "--model", "MODEL", "--output", place_of_models)


@app.command()
def finetune(
    model: Annotated[Path, typer.Option(help="Model directory, ours or Hugging Face's.")],
    output: OutputAnywhere,
    config: ConfigOrTask = None,
    task: OldTask = None,
    grid: Annotated[
        bool,
        typer.Option("--grid", help="Choose learning rate, epochs and batch size by the dev score: `finetuning.grid`."),
    ] = False,
    new_head: Annotated[
        bool, typer.Option("--new-head", help="Replace the model's head, if it has one: `finetuning.new_head`.")
    ] = False,
    set: Overrides = None,
    backend: ChosenBackend = None,
) -> None:
    """Fine-tune a model on a task once per seed, and the same architecture from random weights for comparison."""
    config = require_file(config, task)
    with stopping_for_later(), made_at(output) as place:
        settings = load(config, set, {"finetuning.new_head": new_head or None})
        settings = fetch_tables(choose_backend(settings, backend))
        data = check_finetuning_stage(settings, model, place)
        settings = fill_builtin_task(settings)
        if grid and settings.finetuning.grid is None:
            finetuning = settings.finetuning.model_copy(update={"grid": GridConfig()})
            settings = settings.model_copy(update={"finetuning": finetuning})
        with working(f"Fine-tuning on {settings.task.name}: loading Keras on {settings.backend}"):
            from keras_bert_flow.backends.runtime import keep_freed_memory
            from keras_bert_flow.evaluation.summary import align
            from keras_bert_flow.evaluation.tables import grid_rows, read_grid
            from keras_bert_flow.training.finetuning.finetune import finetune as run

        keep_freed_memory()
        with training_progress() as report:
            run(settings, model, place, report, data=data)
        if table := read_grid(place):
            show(align(grid_rows(table)), keep="\n")
        finetuned = find_finetuned(place)
    show(name_path(output))
    if finetuned:
        say_next("evaluate", *carry(config, set, None, backend), "--model", inside(output, finetuned))


@app.command()
def evaluate(
    config: Annotated[Path | None, typer.Option(help="Configuration file with the section `task`.")] = None,
    model: Annotated[Path | None, typer.Option(help="Model directory, fine-tuned or a masked LM.")] = None,
    predictions: Annotated[
        Path | None, typer.Option(help="File of predictions to score instead, in the task's official format or .jsonl.")
    ] = None,
    minimal_pairs: Annotated[
        Path | None,
        typer.Option(help="File of minimal pairs in BLiMP's format (.jsonl), to score a masked LM without a task."),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(min=1, help="Maximum number of pairs per phenomenon (UID), from the start of the file."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    set: Overrides = None,
    backend: ChosenBackend = None,
    task: OldTask = None,
) -> None:
    """Score one fine-tuned model, or a file of predictions, on the task's dev table; or a masked LM on minimal pairs.

    A minimal pair is an acceptable and an unacceptable sentence. The accuracy is how often the first has the higher
    pseudo-log-likelihood.
    """
    config = choose_file(config, task)
    _check_scored(config, model, predictions, minimal_pairs, limit, set)
    scored: Any = model  # given, where it is read below
    if minimal_pairs is not None:
        fix_backend(backend)
        _print_pairs(scored, minimal_pairs, limit, json)
        return
    if predictions is not None:
        from keras_bert_flow.evaluation.questions import score_predictions

        print_scores(score_predictions(fill_builtin_task(load(config, set)), predictions), json)
        return
    settings = choose_backend(load(config, set), backend)
    check_request(check_model_directory(scored), FINE_TUNED, {})
    settings = fill_builtin_task(settings)
    questions = read_questions(settings, scored)
    with following(f"Scoring {model} on {settings.task.dev}"):
        from keras_bert_flow.evaluation.evaluate import evaluate_model

        scores = evaluate_model(settings, scored, questions)
    print_scores(scores, json)
    say_next(*ask_finetuned(str(model), settings.task.dev), *carry(backend=backend))


def print_scores(scores: dict[str, float], as_json: bool = False) -> None:
    if as_json:
        show_json(dumps(scores))
        return
    for name, value in scores.items():
        show(f"{name}: {value:.4f}" if isinstance(value, float) else f"{name}: {value}")


def _check_scored(
    config: Path | None,
    model: Path | None,
    predictions: Path | None,
    minimal_pairs: Path | None,
    limit: int | None,
    overrides: list[str] | None,
) -> None:
    """Raise ValueError if the options of `kbf evaluate` exclude each other."""
    if minimal_pairs is not None:
        others = {"--config": config, "--predictions": predictions, "--set": overrides}
        given = [name for name, value in others.items() if value]
        if given or model is None:
            raise ValueError(
                "--minimal-pairs must come with --model, and without a task. Received: "
                f"{', '.join(given) or 'no --model'}. {'Leave it out.' if given else 'Name a masked LM.'}"
            )
        return
    if config is None:
        raise ValueError(
            "There must be something to score on. Received: neither --config nor --minimal-pairs. Give one."
        )
    if limit is not None:
        raise ValueError(f"--limit must come with --minimal-pairs. Received: --limit {limit} without. Leave it out.")
    if (model is None) == (predictions is None):
        raise ValueError("What to score must be one of --model and --predictions. Received: neither or both. Give one.")


def _print_pairs(model: Path, path: Path, limit: int | None, as_json: bool) -> None:
    encoded = read_pairs(model, path, limit)
    from keras_bert_flow.evaluation.minimal_pairs import count_masked_copies, evaluate_minimal_pairs
    from keras_bert_flow.evaluation.summary import align
    from keras_bert_flow.evaluation.tables import pairs_rows

    with counting_progress(count_masked_copies(encoded), "Sentences with a mask") as advance:
        results = evaluate_minimal_pairs(model, path, limit, advance=advance, encoded=encoded)
    if as_json:
        show_json(dumps(results, indent=1))
    else:
        show(align(pairs_rows(results)), keep="\n")


def _say_finetuning(
    output: str, asking: list[str], config: Path | None, overrides: list[str] | None, backend: str | None
) -> None:
    """Return the command that follows pre-training; without a configuration there is no task to fine-tune on."""
    given = carry(config, overrides, None, backend)
    if config is None:
        say_next(*asking, *carry(backend=backend))
    else:
        place = beside(output, "finetuned")
        say_next("finetune", *given, "--model", inside(output, MODEL), "--output", place)


# The command that writes a report, or compares reports.

RUNS = Path("runs")


@app.command()
def report(
    runs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUN]...", help="Reports to compare: folders, or keys in the folder of results."),
    ] = None,
    finetuned: Annotated[Path | None, typer.Option(help="Output of `kbf finetune`.")] = None,
    pretrained: Annotated[Path | None, typer.Option(help="Output of `kbf pretrain` or `kbf distill`.")] = None,
    records: Annotated[Path | None, typer.Option(help="Output of `kbf records`.")] = None,
    output: Annotated[str | None, typer.Option(help=OUTPUT_ANYWHERE)] = None,
    earlier: Annotated[
        list[Path] | None,
        typer.Option(help="Output of an earlier `kbf pretrain`: a first phase, or the teacher. Repeatable, in order."),
    ] = None,
    store: Annotated[Path, typer.Option("--runs", help="Folder of results in which to look for keys.")] = RUNS,
    config: ConfigFile = None,
    set: Overrides = None,
    backend: ChosenBackend = None,
) -> None:
    """Evaluate every fine-tuned model and write metrics.json and report.html; or compare reports in a table."""
    if runs:
        given = {"--finetuned": finetuned, "--pretrained": pretrained, "--records": records, "--output": output}
        _compare(runs, store, [name for name, value in given.items() if value is not None])
        return
    if finetuned is None or pretrained is None or records is None or output is None:
        raise ValueError(
            "A report must have --finetuned, --pretrained, --records and --output. Received: not all of them. Give "
            "them, or the reports to compare."
        )
    with made_at(output) as place:
        settings = fetch_tables(choose_backend(load(config, set), backend))
        files = check_report_stage(settings, finetuned, pretrained, records, earlier or (), place)
        settings = fill_builtin_task(settings)
        with following(f"Report of {settings.name}", place):
            from keras_bert_flow.evaluation.evaluate import write_evaluation

            write_evaluation(settings, finetuned, pretrained, records, place, earlier or (), files)
    show(f"{name_path(output)}/report.html")
    if model := find_finetuned(finetuned):
        say_next(*ask_finetuned(inside(finetuned, model), settings.task.dev), *carry(backend=backend))


def _compare(runs: Sequence[str], store: Path, refused: Sequence[str]) -> None:
    from keras_bert_flow.console.terminal import find_columns
    from keras_bert_flow.evaluation.tables import runs_text
    from keras_bert_flow.results.choosing import find_one
    from keras_bert_flow.results.describing import short_key
    from keras_bert_flow.results.lineage import read_result

    if refused:
        raise ValueError(f"Reports to compare must be given alone. Received: {refused[0]} beside them. Leave it out.")
    # A folder is one wherever it lies; a key is looked for.
    found = [read_result(Path(run)) if (Path(run) / MANIFEST).is_file() else find_one(run, store)[0] for run in runs]
    labels = [f"{result.name or result.stage} {short_key(result.key)}" for result in found]
    folders = dict(zip(labels, (result.folder for result in found), strict=True))
    show(runs_text(folders, find_columns()), keep="\n")
