"""The command that searches over settings."""

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keras_bert_flow.cli.application import app
from keras_bert_flow.cli.options import ChosenBackend, ConfigFile, Overrides, choose_file, say_next
from keras_bert_flow.cli.run_commands import check_whole_run
from keras_bert_flow.config.loading import load_config
from keras_bert_flow.config.pipeline import TuningConfig
from keras_bert_flow.console.progress import working
from keras_bert_flow.console.terminal import is_told, show
from keras_bert_flow.files.inputs import InputStates
from keras_bert_flow.files.paths import check_work_folder, make_folder
from keras_bert_flow.installed import check_installed
from keras_bert_flow.results.artifacts import locked
from keras_bert_flow.results.publishing import holding_results

if TYPE_CHECKING:
    from keras_bert_flow.tuning import Search

SHOWN_TRIALS = 5
MAX_FIRST_FAILURES = 3  # with no trial that ended well: the reason is not what is searched
TRAINED = ("vocabulary", "records", "pretraining")
STAGES = {"held_out_loss": TRAINED, "dev_score": (*TRAINED, "finetuning")}


@app.command()
def tune(
    file: Annotated[
        Path | None, typer.Argument(metavar="CONFIG", help="Configuration file; see `kbf configs list`.")
    ] = None,
    config: ConfigFile = None,
    space: Annotated[
        list[str] | None,
        typer.Option(
            help="Search a setting: name=low..high, name=low..high:log or name=a,b,c. Repeatable; "
            "replaces that of `tuning.space`."
        ),
    ] = None,
    trials: Annotated[int | None, typer.Option(min=1, help="Number of trials. Default: `tuning.trials`.")] = None,
    set: Overrides = None,
    backend: ChosenBackend = None,
) -> None:
    """Search settings for the best dev score or the lowest held-out loss; a repeated command resumes the search."""
    config = choose_file(config, file, "the argument")
    if config is None:
        raise ValueError("A search must have a configuration file. Received: none. Try kbf tune mine.yaml")
    check_installed(["optuna"])
    given = list(set or ())
    opening = load_config(config, given)
    tuning, objective = _check(config, given, opening, space or (), trials)
    settings, _ = check_whole_run(config, given, backend, STAGES[objective])
    given.append(f"backend={settings.backend}")
    from flows.parameters import local_runs, make_paths_absolute

    with holding_results(local_runs(make_paths_absolute(settings))):
        best = _search(str(config), given, settings, tuning, objective)
    from keras_bert_flow.tuning import write_overrides

    changes = [*(set or ()), *write_overrides(best)]
    options = [option for change in changes for option in ("--set", change)]
    say_next("run", config, *options, *(["--backend", backend] if backend else []))


def _search(
    config: str, given: Sequence[str], settings: Any, tuning: TuningConfig, objective: str
) -> Mapping[str, Any]:
    """Run the trials that are missing, show the best, and return its values."""
    with working("Looking for the study"):
        from flows.trial import find_search_folder

        folder, inputs = find_search_folder(config, given, tuning, objective, _show_progress)
        from keras_bert_flow.tuning import Search

    check_work_folder(folder)
    for path in (folder.parent, folder):
        make_folder(path, in_store=True)
    with locked(folder / ".lock"):
        search = Search(folder, tuning, objective)
        metric = "held-out loss"
        if objective == "dev_score":
            from keras_bert_flow.tasks.registry import make_task

            metric = f"dev {make_task(**settings.task.arguments).main_metric.replace('_', ' ')}"
        ended = len(search.list_ended())
        if ended:
            show(f"{ended} of {tuning.trials} trials have ended before.")
        while (place := len(search.list_ended()) + 1) <= tuning.trials:
            _run_trial(search, f"trial {place} of {tuning.trials}", metric, config, given, objective, inputs)
        _show_best(search, settings.name, metric)
        if objective == "dev_score":  # the shown score is of the table that the settings were chosen on
            said = "The dev table chose these settings, so they score lower on new texts, the more trials the lower."
            if others := ", ".join(settings.task.extra_dev):
                show(f"{said} Report what they score on a table that chose nothing: {others}.")
            else:
                show(f"{said} Add a table that chooses nothing, and report its score: --set task.extra_dev.test=FILE")
        return search.rank()[0][2]


def _check(
    config: Path, given: Sequence[str], opening: Any, space: Sequence[str], trials: int | None
) -> tuple[TuningConfig, str]:
    """Return what is searched and measured; raise ValueError where the configuration does not take it."""
    from keras_bert_flow.models.sizes import resolve_shape
    from keras_bert_flow.tuning import check_space, read_tuning

    tuning = read_tuning(opening.tuning, space, trials)
    objective = tuning.objective or ("dev_score" if "task" in opening.model_fields_set else "held_out_loss")
    if objective == "dev_score" and opening.finetuning.grid is not None:
        raise ValueError(
            "A search must go without `finetuning.grid`, a search of its own. Received: both. "
            "Try --set finetuning.grid=null"
        )

    def check(overrides: Sequence[str]) -> None:
        changed = load_config(config, [*given, *overrides])
        resolve_shape(changed.model, changed.vocabulary.size)  # raises where the sizes contradict each other
        if objective == "dev_score":
            changed.check_finetuned_length()

    check_space(tuning, objective, check)
    return tuning, objective


def _run_trial(
    search: "Search",
    name: str,
    metric: str,
    config: str,
    given: Sequence[str],
    objective: str,
    inputs: InputStates,
) -> None:
    from optuna import TrialPruned

    from flows.stages import StageError
    from flows.trial import resolve_trial, run_trial
    from keras_bert_flow.tuning import write_overrides

    trial, values = search.begin_trial()
    overrides, started_at = write_overrides(values), time.monotonic()
    show(f"{name}: {', '.join(overrides)}")
    last = 0, float("nan")

    def report(step: int, value: float) -> None:
        nonlocal last
        last = step, value
        trial.report(value, step)
        if trial.should_prune():
            raise TrialPruned

    try:
        resolved = resolve_trial(config, [*given, *overrides], _show_progress)
        value = run_trial(resolved, objective, _show_progress, report)
    except TrialPruned:
        inputs.check()  # before a trial enters the study, which is named by them
        search.prune(trial)
        unit = "epoch" if objective == "dev_score" else "step"
        show(f"{name}: pruned at {unit} {last[0]:,}, {metric} {last[1]:.4f}")
    except (ValueError, StageError) as error:
        inputs.check()
        failure = " ".join(str(error).split())
        search.prune(trial, failure)
        show(f"{name}: failed: {failure}")
        if len(search.list_ended()) >= MAX_FIRST_FAILURES and not search.rank():
            raise
    else:
        inputs.check()
        search.complete(trial, value)
        place, best, _ = search.rank()[0]
        seconds = time.monotonic() - started_at
        show(f"{name}: {metric} {value:.4f} in {seconds:,.0f} s; the best is {best:.4f}, of trial {place}")


def _show_progress(line: str) -> None:
    if is_told():
        show(line, sys.stderr)


def _show_best(search: "Search", name: str, metric: str) -> None:
    from keras_bert_flow.tuning import write_overrides

    rows = search.rank()
    if not rows:
        raise ValueError(
            f"A search must have a trial that succeeds. Received: {len(search.list_ended())} that failed or were "
            "pruned. Search other values, or more trials."
        )
    show(f"\nThe best of {len(search.list_ended())} trials of {name}; study: {search.path}")
    show(f"trial  {metric:>15}  settings")
    for place, value, values in rows[:SHOWN_TRIALS]:
        options = " ".join(f"--set {override}" for override in write_overrides(values))
        show(f"{place:5}  {value:15.4f}  {options}")
