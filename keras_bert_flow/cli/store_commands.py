"""Commands that look at the store of results, and tidy it."""

import sys
import time
from collections.abc import Mapping, Sequence
from json import dumps
from pathlib import Path
from typing import Annotated

import typer

from keras_bert_flow.cli.application import Commands, app
from keras_bert_flow.console.terminal import JOINERS, escape_controls, find_columns, fit, show, show_json

runs = Commands(help="List, show, compare, adopt and remove the results of stages.", no_args_is_help=True)
app.add_typer(runs, name="runs")

Store = Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Folder of results: `runs` of a configuration.")]
StoreOption = Annotated[Path, typer.Option("--runs", help="Folder of results: `runs` of a configuration.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
RUNS = Path("runs")


@runs.command("list")
def list_runs(folder: Store = RUNS, json: AsJson = False) -> None:
    """List the results in a folder: stage, key, size, age, command, dependants and state."""
    from keras_bert_flow.results.describing import HEADINGS, align, as_row, as_values
    from keras_bert_flow.results.lineage import find_results, list_uses

    results, now = find_results(folder), time.time()
    uses = list_uses(results)
    if json:
        show_json(dumps([as_values(result, uses[result.folder], now) for result in results], indent=1))
    elif results:
        columns = find_columns()
        rows = [as_row(result, uses[result.folder], now, columns is not None) for result in results]
        show(align([HEADINGS, *rows], columns), keep="\n")
    else:
        show(f"There are no results in {folder}.", sys.stderr)


@runs.command("show")
def show_run(
    key: Annotated[str, typer.Argument(metavar="KEY", help="Key or prefix of a key, or the folder of the result.")],
    folder: StoreOption = RUNS,
    json: AsJson = False,
) -> None:
    """Show a result: settings, scores, files, inputs and dependants."""
    from keras_bert_flow.results.choosing import find_one
    from keras_bert_flow.results.describing import as_values, as_yaml, describe_source, read_scores, read_settings
    from keras_bert_flow.results.lineage import list_sources, list_uses

    result, results = find_one(key, folder)
    uses, now = list_uses(results).get(result.folder, []), time.time()
    sources, settings, scores = list_sources(result, results), read_settings(result), read_scores(result)
    files = result.manifest.files if result.manifest else ()
    values = as_values(result, uses, now)
    if json:
        values |= {"settings": settings, "scores": scores, "files": {file.name: file.file_bytes for file in files}}
        values["inputs"] = {
            source.name: {"content": source.digest, "made_by": [held.key for held in source.results]}
            for source in sources
        }
        show_json(dumps(values, indent=1))
        return
    sections = {
        "made from": {source.name: describe_source(source) for source in sources},
        "needed by": {f"{other.stage} {other.key}": str(other.folder) for other in uses},
        "settings": {name: as_yaml(value) for name, value in settings.items()},
        "scores": {name: as_yaml(value) for name, value in scores.items()},
        "files": {file.name: f"{file.file_bytes:,} bytes" for file in files},
    }
    facts = {name: str(value) for name, value in values.items() if name != "needed_by" and value not in ("", None)}
    columns = find_columns()
    texts = [_format_facts(facts, columns)]
    for title, entries in sections.items():
        indented = {f"  {name}": value for name, value in entries.items()}
        texts += ["", f"{title}:", _format_facts(indented, columns)] if entries else ["", f"{title}: nothing"]
    show("\n".join(texts), keep="\n")


def _format_facts(facts: Mapping[str, str], columns: int | None) -> str:
    """Return a line for each fact, or on a terminal two columns that fit it."""
    if columns is not None:
        return fit([[f"{name}:", value] for name, value in facts.items()], columns)
    return "\n".join(escape_controls(f"{name}: {value}", JOINERS) for name, value in facts.items())


@runs.command("compare")
def compare_runs(
    first: Annotated[str, typer.Argument(metavar="A", help="Key or prefix of a key, or a folder.")],
    second: Annotated[str, typer.Argument(metavar="B", help="Another result.")],
    folder: StoreOption = RUNS,
    json: AsJson = False,
) -> None:
    """Show the revision, inputs, settings and scores in which two results differ, side by side."""
    from keras_bert_flow.console.terminal import name_files
    from keras_bert_flow.results.choosing import find_one
    from keras_bert_flow.results.describing import (
        align,
        as_yaml,
        describe_source,
        list_differences,
        read_scores,
        read_settings,
        short_key,
    )
    from keras_bert_flow.results.lineage import list_sources

    columns = find_columns()
    given = [find_one(key, folder) for key in (first, second)]
    pair = [result for result, _ in given]
    inputs = [dict(result.manifest.inputs) if result.manifest else {} for result in pair]
    revisions = [{"revision": result.manifest.revision} if result.manifest else {} for result in pair]
    found = {
        "revision": list_differences(*revisions),
        "inputs": list_differences(*inputs),
        "settings": list_differences(*map(read_settings, pair)),
        "scores": list_differences(*map(read_scores, pair)),
    }
    if json:
        by_name = {title: {name: [a, b] for name, a, b in rows} for title, rows in found.items()}
        show_json(dumps({"keys": [result.key for result in pair]} | by_name, indent=1))
        return
    if columns is not None:  # where an input came from says more than the digest of its content
        places = [{source.name: describe_source(source, True) for source in list_sources(*one)} for one in given]
        found["inputs"] = [(name, places[0].get(name), places[1].get(name)) for name, _, _ in found["inputs"]]
        for number, (name, *values) in enumerate(found["settings"]):
            first_value, second_value = name_files(values)
            found["settings"][number] = (name, first_value, second_value)
    write = str if columns is None else short_key
    rows = [["", *(f"{result.stage} {write(result.key)}" for result in pair)]]
    for title, differences in found.items():
        rows.append([f"{title}:" if differences else f"{title}: the same", "", ""])
        for name, first_value, second_value in differences:
            both = (first_value, second_value)
            rows.append([f"  {name}", *("-" if value is None else as_yaml(value) for value in both)])
    show(align(rows, columns), keep="\n")


@runs.command("adopt")
def adopt_runs(
    folder: Store = RUNS,
    config: Annotated[
        Path | None,
        typer.Option(help="Configuration that vocabularies and records were made with, where no report says it."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Adopt them; otherwise they are only listed.")] = False,
    json: AsJson = False,
) -> None:
    """List or adopt the results of earlier versions, so that runs use them instead of making them again.

    Keys of earlier versions covered the code. A result is adopted under the key that this version gives to its stage,
    settings and inputs; that it would make the same now is taken on trust. The earlier folder stays, and its files are
    shared with the new one.
    """
    from keras_bert_flow.config.loading import load_config
    from keras_bert_flow.results.adoption import adopt, list_adoptions
    from keras_bert_flow.results.lineage import find_results

    adoptions = list_adoptions(find_results(folder), None if config is None else load_config(config))
    rows = []
    for one in adoptions:  # the earliest stage first
        result, is_adopted = one.result, bool(one.key) and yes
        place = adopt(one) if is_adopted else one.place if one.key else ""
        rows.append(
            {
                "stage": result.stage,
                "key": result.key,
                "folder": str(result.folder),
                "new_key": one.key,
                "new_folder": str(place),
                "new_settings": one.added,
                "reason": one.reason,
                "adopted": is_adopted,
            }
        )
        if not json:
            added = f" (at their defaults: {', '.join(one.added)})" if one.added else ""
            what = f"adopt  {result.stage} {result.key} as {one.key}{added}"
            show(what if one.key else f"leave  {result.stage} {result.key}: {one.reason}")
    if json:
        show_json(dumps(rows, indent=1))
        return
    count = sum(bool(one.key) for one in adoptions)
    end = "" if yes or not count else " Nothing was changed: add --yes."
    show(f"{count} of {len(adoptions)} results of earlier versions {'adopted' if yes else 'to adopt'}.{end}")


@runs.command("gc")
def collect(
    folder: Store = RUNS,
    older_than: Annotated[str | None, typer.Option(help="Keep results younger than this: 30d, 12h, 45m.")] = None,
    keep_last: Annotated[
        int | None, typer.Option(min=0, help="Number of newest results of each stage to keep.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be removed, but remove nothing.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Remove without asking.")] = False,
    json: AsJson = False,
) -> None:
    """Remove results that no kept result was made from, and leftovers of dead processes.

    Kept are, with what they were made from: results that a run needs or a command reads, those that a link leads to,
    such as that of the newest run of a name, and damaged ones. Programs that read a result without a command of `kbf`
    are not detected.
    """
    from keras_bert_flow.results import choosing
    from keras_bert_flow.results.lineage import Result
    from keras_bert_flow.results.publishing import find_needs

    if older_than is None and keep_last is None:
        raise ValueError(
            "`kbf runs gc` must have a rule for what to keep. Received: neither --older-than nor --keep-last. Try "
            "--older-than 30d --dry-run."
        )
    age = None if older_than is None else choosing.read_age(older_than)

    def choose_now(results: Sequence[Result]) -> list[choosing.Choice]:
        return choosing.choose(results, time.time(), age, keep_last, find_needs(choosing.find_store(folder)), folder)

    choices = choose_now(choosing.find_related(folder))
    going = [choice for choice in choices if not choice.is_kept]
    size = sum(choice.result.file_bytes for choice in going)
    if not json:
        for choice in choices:
            what = "keep  " if choice.is_kept else "remove"
            show(f"{what}  {choice.result.stage} {choice.result.key}: {choice.reason}")
        show(f"{len(going)} of {len(choices)} to remove, {size / 1e6:,.1f} MB.")
    is_sure = not dry_run and bool(going) and _confirm(yes, len(going), size)
    # In the order of making, backwards: what is left after a kill is whole, and has what it was made from.
    chosen = [choice.result for choice in reversed(going)] if is_sure else []
    removed, kept = choosing.remove_results(folder, chosen, choose_now)
    if not dry_run:
        for link in choosing.remove_dangling(choosing.find_store(folder)):
            show(f"Removed the link {link}, which led nowhere.", sys.stderr)
    if json:
        rows = [
            {"key": choice.result.key, "stage": choice.result.stage, "folder": str(choice.result.folder)}
            | {"bytes": choice.result.file_bytes, "keep": choice.is_kept, "reason": choice.reason}
            | {"removed": choice.result in removed}
            for choice in choices
        ]
        show_json(dumps(rows, indent=1))
        return
    for choice in kept:
        show(f"kept    {choice.result.stage} {choice.result.key} after all: {choice.reason}")
    if is_sure:
        show(f"{len(removed)} removed, {sum(result.file_bytes for result in removed) / 1e6:,.1f} MB.")
    elif going:
        show("Nothing was removed.")


def _confirm(yes: bool, count: int, size: int) -> bool:
    if yes:
        return True
    if not sys.stdin.isatty():
        raise ValueError("A removal must be confirmed. Received: no --yes, and nobody to ask. Add --yes or --dry-run.")
    return typer.confirm(f"Remove {count} results, {size / 1e6:,.1f} MB?", err=True)


@app.command()
def lineage(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Result of a stage, or a model.")],
    store: Annotated[
        Path | None,
        typer.Option("--runs", help="Folder of the results that it was made from. Default: that of DIR, or runs."),
    ] = None,
    json: AsJson = False,
) -> None:
    """Show what a result was made from, down to the text, with the commands that reproduce it."""
    from keras_bert_flow.results.choosing import read_made
    from keras_bert_flow.results.describing import draw_tree, list_commands
    from keras_bert_flow.results.lineage import store_of, walk_sources

    result, part, results = read_made(folder, store)
    if json:
        chain = []
        for made, sources in walk_sources(result, results):
            inputs = {source.name: [held.key for held in source.results] for source in sources}
            chain.append({"stage": made.stage, "key": made.key, "folder": str(made.folder), "inputs": inputs})
        show_json(dumps(chain, indent=1))
        return
    columns, base = find_columns(), None
    if columns is not None:  # paths are shortest from the current folder, or from that of the results
        around, here = store_of(result.folder), Path.cwd()
        base = here if around.is_relative_to(here) else around
    title = "Commands:" if base in (None, Path.cwd()) else f"Commands, in {base}:"
    commands = [escape_controls(line, "\n") for line in list_commands(result, results, base, columns)]
    show("\n".join([*draw_tree(result, results, part, columns), "", title, *commands]), keep="\n" + JOINERS)
