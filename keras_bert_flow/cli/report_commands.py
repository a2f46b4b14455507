"""The command that writes a report, or compares reports."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from keras_bert_flow.cli.application import app
from keras_bert_flow.cli.builtin_files import fill_builtin_task
from keras_bert_flow.cli.next_steps import ask_finetuned, carry, find_finetuned, inside, say_next
from keras_bert_flow.cli.options import OUTPUT_ANYWHERE, ChosenBackend, ConfigFile, Overrides, choose_backend, load
from keras_bert_flow.cli.work_measure import following
from keras_bert_flow.local_paths import name_path
from keras_bert_flow.outputs import MANIFEST
from keras_bert_flow.preflight.stages import check_report_stage
from keras_bert_flow.stores.publishing import made_at
from keras_bert_flow.terminal import show
from keras_bert_flow.training.finetuning.task_tables import fetch_tables

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
    from keras_bert_flow.columns import find_columns
    from keras_bert_flow.evaluation.run_table import runs_text
    from keras_bert_flow.lineage.choosing import find_one
    from keras_bert_flow.lineage.describing import short_key
    from keras_bert_flow.lineage.results import read_result

    if refused:
        raise ValueError(f"Reports to compare must be given alone. Received: {refused[0]} beside them. Leave it out.")
    # A folder is one wherever it lies; a key is looked for.
    found = [read_result(Path(run)) if (Path(run) / MANIFEST).is_file() else find_one(run, store)[0] for run in runs]
    labels = [f"{result.name or result.stage} {short_key(result.key)}" for result in found]
    folders = dict(zip(labels, (result.folder for result in found), strict=True))
    show(runs_text(folders, find_columns()), keep="\n")
