"""The command that runs the whole pipeline, and those that list and copy configurations.

Its first line comes before anything heavy is imported.
"""

import difflib
import errno
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from keras_bert_flow.cli.application import Commands, app
from keras_bert_flow.cli.options import (
    ChosenBackend,
    ConfigFile,
    Overrides,
    ask_finetuned,
    carry,
    choose_backend,
    choose_file,
    find_finetuned,
    inside,
    load,
    say_next,
)
from keras_bert_flow.config.limits import BUILTIN
from keras_bert_flow.config.loading import load_config
from keras_bert_flow.config.pipeline import MatrixConfig, PipelineConfig, list_cells
from keras_bert_flow.config.pretraining import AUTO
from keras_bert_flow.console.progress import working
from keras_bert_flow.console.terminal import is_told, show
from keras_bert_flow.files.outputs import check_place
from keras_bert_flow.files.paths import find_address, name_path
from keras_bert_flow.installed import ROOT
from keras_bert_flow.results.publishing import holding_results
from keras_bert_flow.results.stages.keys import name_stages

# Check all that the stages of a configuration are given, before the first of them begins.


def check_whole_run(
    config: Path,
    overrides: Sequence[str] | None,
    backend: str | None,
    stages: Sequence[str] | None = None,
    packages: Sequence[str] = (),
) -> tuple[PipelineConfig, Any]:
    """Return the resolved configuration, and the result of `check_run`.

    Args:
        stages: those that are to run; all by default.
        packages: needed besides those of the stages.
    Raises:
        FileNotFoundError, OSError, ValueError: something would end a stage.
    """
    with working("Checking the configuration and its files"):
        from keras_bert_flow.checks.run import STAGES, check_run, fetch_inputs

        settings = fetch_inputs(choose_backend(load(config, [*(overrides or ())]), backend))
        task = check_run(settings, stages or STAGES, packages)
        is_elsewhere = find_address(settings.runs) is not None
        if settings.beam or is_elsewhere:
            from beam_jobs.running import check_options
            from beam_jobs.storage import BeamStorage, check_reachable

            check_options(settings.beam)
            if is_elsewhere:
                BeamStorage(settings.beam)  # its filesystems take their options
                check_reachable(settings.runs)
    return settings, task


@app.command()
def run(
    file: Annotated[
        Path | None, typer.Argument(metavar="CONFIG", help="Configuration file; see `kbf configs list`.")
    ] = None,
    config: ConfigFile = None,
    set: Overrides = None,
    backend: ChosenBackend = None,
    plan: Annotated[bool, typer.Option("--plan", help="Print stages, keys and estimates, but run nothing.")] = False,
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            metavar="DEVICE",
            help="With --plan: compile the pre-training step for a GPU or TPU slice, such as h100 or v5e-8, or that a "
            "YAML or JSON file describes.",
        ),
    ] = None,
) -> None:
    """Run the whole pipeline, from text to report, as a Prefect flow; finished stages are cached."""
    config = choose_file(config, file, "the argument")
    if device is not None:
        from keras_bert_flow.checks.ahead import check_device, compiling_for

        check_device(device, plan)
    if config is None:
        raise ValueError(
            "A run must have a configuration file. Received: none. Try kbf configs copy quickstart, then kbf run "
            "quickstart.yaml"
        )
    opening = load_config(config, set or ())
    if opening.matrix is not None:
        if device is not None:
            raise ValueError(
                f"`--device` must go with one run. Received: --device {device}, and a configuration with `matrix`. "
                "Set what differs with --set, and leave out `matrix`."
            )
        _run_matrix(config, opening.matrix, set or [], backend, plan)
        return
    if is_told() and not plan:
        show(f"Run of {opening.name}: {', '.join(name_stages(opening))}. Results in {opening.runs}.", sys.stderr)
    try:
        settings, task = check_whole_run(config, set, backend, packages=["prefect"])
    except OSError as error:
        if plan or not _show_finished(config, set or (), backend, error):
            raise
        return
    if plan:
        has_own_precision = opening.pretraining.precision != AUTO
        with nullcontext() if device is None else compiling_for(settings, device, has_own_precision) as describe:
            _show_plan(settings, task)  # compiling meanwhile
            if describe is not None:
                with working(f"Compiling a step for {device}"):
                    lines = describe()
                show("\n".join(["", *lines]), keep="\n")
        command = [option for change in set or () for option in ("--set", change)]
        say_next("run", config, *command, *(["--backend", backend] if backend else []))
        return
    with _holding(settings) as show_line:
        _say_finished(settings)
        from flows.local import run_locally

        path = run_locally(config, set or (), settings.backend, show_line)
        from keras_bert_flow.stores.fetching import fetch

        show((fetch(path.parent) / "report.md").read_text(encoding="utf-8"), keep="\n")
        show(f"Report: {name_path(path)}")
        _say_asking(settings, path.parent)


def _show_finished(config: Path, overrides: Sequence[str], backend: str | None, error: OSError) -> bool:
    """Show the report of a finished run whose results may only be read; return False if there is none."""
    settings = choose_backend(load_config(config, overrides), backend)
    is_closed = error.errno in (errno.EACCES, errno.EROFS, errno.EPERM)
    if not is_closed or find_address(settings.runs) or not Path(settings.runs).is_dir():
        return False
    from flows.local import find_report

    parameters = {"config_path": str(config), "overrides": [*overrides, f"backend={settings.backend}"]}
    with suppress(OSError, ValueError):  # the error of the run says why it cannot be made
        if path := find_report(parameters, show):
            show((path.parent / "report.md").read_text(encoding="utf-8"), keep="\n")
            show(f"Report: {path}")
            return True
    return False


def _run_matrix(config: Path, matrix: MatrixConfig, overrides: list[str], backend: str | None, plan: bool) -> None:
    """Run every cell of a matrix and show the table, or show what each would do."""
    cells = list_cells(matrix)
    if is_told() and not plan:
        show(f"{len(cells)} runs, {matrix.at_once} at a time: {'; '.join(cell.label for cell in cells)}", sys.stderr)
    for cell in cells:
        # a matrix over backends says which one each run has, stronger than the option and the environment
        own = load_config(config, [*overrides, *cell.overrides]).backend if "backend" in cell.names else backend
        settings, task = check_whole_run(config, [*overrides, *cell.overrides], own, packages=["prefect"])
        if plan:
            show(f"{cell.label}:")
            _show_plan(settings, task)
    if plan:
        return
    from flows.local import MATRIX, run_locally

    with _holding(settings) as show_line:
        table = run_locally(config, overrides, settings.backend, show_line, MATRIX)
        show(table.read_text(encoding="utf-8"), keep="\n")


@contextmanager
def _holding(settings: PipelineConfig) -> Iterator[Callable[[str], None]]:
    """Hold everything in the folder of results until the flow, whose lines are shown, holds what it needs."""
    from flows.parameters import local_runs, make_paths_absolute

    with holding_results(local_runs(make_paths_absolute(settings))) as lease:

        def show_line(line: str) -> None:
            if lease:
                lease.close()
            show(line)

        yield show_line


def _show_plan(settings: PipelineConfig, task: Any) -> None:
    from flows.parameters import make_paths_absolute
    from flows.plan import describe_plan

    with working("Reading the corpus and what is finished"):
        text = describe_plan(make_paths_absolute(settings), task)
    show(text, keep="\n")


def _say_finished(settings: PipelineConfig) -> None:
    """Say which stages are finished, where that is quickly known."""
    if not is_told():
        return
    from flows.parameters import make_paths_absolute
    from flows.plan import describe_finished

    with suppress(OSError, ValueError):  # what is damaged is said, and made again, when its stage comes
        with working("Looking for what is finished"):
            finished = describe_finished(make_paths_absolute(settings))
        show(finished, sys.stderr)


def _say_asking(settings: PipelineConfig, evaluation: Path) -> None:
    """Name the command that asks the model which a report is of."""
    from keras_bert_flow.results.lineage import find_source
    from keras_bert_flow.results.stages.data import CORPUS, corpus_key, resolve_builtin

    with suppress(OSError, ValueError):  # the run has ended well, whatever else lies there
        finetuned = find_source(evaluation, "finetuned")
        model = find_finetuned(finetuned) if finetuned else None
        if finetuned is None or model is None:
            return
        if settings.task.dev == BUILTIN:
            settings = resolve_builtin(settings, Path(settings.runs).absolute() / CORPUS.name / corpus_key())
        say_next(*ask_finetuned(inside(finetuned, model), settings.task.dev), *carry(backend=settings.backend))


# Commands that list and copy the configurations that come with the project.

IN_WHEEL = ROOT / "keras_bert_flow" / "configs"  # `configs/` of a checkout, put there by pyproject.toml
DEPLOYMENTS = "prefect"  # flows/prefect.yaml

configs = Commands(help="List and copy the configurations that come with the project.", no_args_is_help=True)
app.add_typer(configs, name="configs")


@configs.command("list")
def list_configs() -> None:
    """List the configurations: the name of each, and its first line."""
    files = find_configs()
    width = max(map(len, files))
    for name, path in files.items():
        first_line = path.read_text(encoding="utf-8").partition("\n")[0]
        show(f"{name:{width}}  {first_line.lstrip('# ')}")


@configs.command("copy")
def copy_config(
    name: Annotated[str, typer.Argument(help="A name that `kbf configs list` prints, such as tasks/cola.")],
    target: Annotated[
        Path | None, typer.Argument(help="New file, or a folder. Default: the same name in the working directory.")
    ] = None,
) -> None:
    """Copy a configuration, to be edited. Existing files are never overwritten."""
    files = find_configs()
    chosen = name.removeprefix("configs/").removesuffix(".yaml")
    if chosen not in files:
        near = difflib.get_close_matches(chosen, files, 1) or ["quickstart"]
        raise ValueError(
            f"A configuration must be one that `kbf configs list` prints. Received: {name}. "
            f"Try kbf configs copy {near[0]}"
        )
    source, target = files[chosen], target or Path()
    if target.is_dir():
        target /= source.name
    check_place(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with open(target, "xb") as file:
            file.write(source.read_bytes())
    except FileExistsError:
        raise ValueError(
            f"The copy must be a new file. Received: {target}, which exists. Choose another name."
        ) from None
    show(target)
    if chosen != DEPLOYMENTS and not chosen.startswith("tasks/"):  # which need a model
        say_next("run", target, "--plan")


def find_configs() -> dict[str, Path]:
    """Return the files of the configurations by name, without `.yaml`."""
    folder = IN_WHEEL if IN_WHEEL.is_dir() else ROOT / "configs"
    files = {path.relative_to(folder).with_suffix("").as_posix(): path for path in sorted(folder.rglob("*.yaml"))}
    return files | {DEPLOYMENTS: ROOT / "flows" / "prefect.yaml"}
