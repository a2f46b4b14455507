"""The command that drafts a configuration for a user's own text and task."""

import importlib.util
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from keras_bert_flow.cli.application import app
from keras_bert_flow.cli.next_steps import say_next
from keras_bert_flow.extras import BACKENDS
from keras_bert_flow.outputs import check_place
from keras_bert_flow.progress import working
from keras_bert_flow.terminal import show

EAGER_BACKEND, SHORT_MINUTES = "torch", 30


@app.command()
def init(
    text: Annotated[list[str], typer.Argument(metavar="TEXT...", help="Files, folders or globs of text.")],
    task: Annotated[
        Path, typer.Option(help="Table of texts and labels: .tsv, .csv, .jsonl, .parquet; or words with tags.")
    ],
    output: Annotated[Path, typer.Option(help="New file for the configuration.")],
    dev: Annotated[
        Path | None,
        typer.Option(
            help="Table to evaluate on. Default: the file next to --task with dev for train in its name, else a "
            "tenth of it."
        ),
    ] = None,
    test: Annotated[
        Path | None,
        typer.Option(
            help="Table that nothing is chosen on, shown in the report. Default: the file next to --task with test for "
            "train in its name, or a tenth of a table that is divided."
        ),
    ] = None,
    minutes: Annotated[
        float, typer.Option(min=1, max=100_000, help="Time budget of the whole run on this machine.")
    ] = 30.0,
    name: Annotated[
        str | None, typer.Option(help="Name of the run, shown in its report. Default: that of the file.")
    ] = None,
) -> None:
    """Inspect a corpus and a task table, and write a commented configuration for `kbf run`. Nothing is overwritten.

    It reports the role that it assigned to each column, which can be changed in the file.
    """
    _check_new(output)
    with working("Looking at the text and the table, and measuring this processor"):
        from keras_bert_flow.drafting.budget import choose_budget
        from keras_bert_flow.drafting.splitting import EVERY, count_rows, name_parts, split_table
        from keras_bert_flow.drafting.task import draft_task, find_beside
        from keras_bert_flow.drafting.text import look_at_corpus
        from keras_bert_flow.drafting.writing import Draft, describe_draft, write_draft
        from keras_bert_flow.planning.estimates import measure_rate
        from keras_bert_flow.tasks.registry import make_task
        from keras_bert_flow.text.corpus.inputs import check_inputs
        from keras_bert_flow.training.finetuning.task_data import compare_classes, list_remarks

        look = look_at_corpus(check_inputs(text))
        drafted = draft_task(task)
        header = bool(drafted.settings.get("header", False))
        as_drafted = make_task(drafted.kind, **drafted.settings)
        rows = as_drafted.read(task)
        learnt = as_drafted.learn(rows)
        dev = dev or find_beside(task)
        parts = None if dev else name_parts(task, output, rows, with_test=test is None)
        test_files, unread = read_test(test, task, dev, as_drafted)
        examples = count_rows(task, header)
        dev_files = {} if dev is None else {"dev": (dev, as_drafted.read(dev))}
        dev_files |= test_files
        dev_rows = dev_files["dev"][1] if dev else ()
        budget = choose_budget(minutes, look, drafted, examples, measure_rate(), len(dev_rows) or examples // EVERY)
        train, *measured = [*map(str, parts or (task, dev)), *(str(file) for file, _ in test_files.values())]
        draft = Draft(
            name or output.stem, text, train, measured[0], minutes, _choose_backend(minutes), look, drafted, examples,
            budget, tuple(measured[1:]), compare_classes(learnt, "dev", rows, dev_rows),
        )  # fmt: skip
        content = write_draft(draft, str(output))
        remarks = [*list_remarks(learnt, drafted.settings, task, rows, dev_files), *unread]
        if parts:
            sizes = split_table(task, parts, header, rows)
    output.parent.mkdir(parents=True, exist_ok=True)
    try:
        with open(output, "x", encoding="utf-8") as file:
            file.write(content)
    except FileExistsError:
        raise _existing(output) from None
    for line in describe_draft(draft):
        show(line, sys.stderr)
    for remark in remarks:
        show(f"  {remark}", sys.stderr)
    if parts:
        counts = ", ".join(f"{count:,} rows in {part}" for part, count in zip(parts, sizes, strict=True))
        show(f"The table is divided: {counts}, where a text is with all of its rows.", sys.stderr)
    show(output)
    say_next("run", output, "--plan")


def read_test(test: Path | None, train: Path, dev: Path | None, task: Any) -> tuple[dict[str, tuple], list[str]]:
    """Return `test` → the file of that table and its rows, and remarks; one that has no labels is not used if found."""
    from keras_bert_flow.drafting.task import TEST_NAMES, find_beside

    found = test or (find_beside(train, TEST_NAMES) if dev else None)
    if found is None or (dev is not None and found.samefile(dev)):
        return {}, []
    try:
        return {"test": (found, task.read(found))}, []
    except ValueError as error:
        if test is not None:
            raise
        return {}, [f"{found} is not used as a test table: {error}"]


def _check_new(output: Path) -> None:
    check_place(output)
    if output.exists():
        raise _existing(output)


def _existing(output: Path) -> FileExistsError:
    return FileExistsError(f"The configuration must be a new file. Received: {output}, which exists. Choose another.")


def _choose_backend(minutes: float) -> str:
    """Return $KERAS_BACKEND, else the first backend that is installed; for a short run the one that compiles nothing.

    On JAX each of the starts of a fine-tuning is compiled, for half a minute on two cores, whatever it trains then.
    """
    chosen = os.environ.get("KERAS_BACKEND")
    if chosen in BACKENDS:
        return chosen
    order = sorted(BACKENDS, key=lambda name: name != EAGER_BACKEND) if minutes <= SHORT_MINUTES else BACKENDS
    return next((name for name in order if importlib.util.find_spec(name)), order[0])
