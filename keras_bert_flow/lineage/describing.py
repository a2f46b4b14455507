"""Format results for people, as tables and trees, and for programs, as JSON-like values."""

import shlex
from collections.abc import Sequence
from typing import Any

from keras_bert_flow.lineage.links import Source, list_sources, walk_sources
from keras_bert_flow.lineage.results import Result
from keras_bert_flow.lineage.settings import as_yaml, list_changed
from keras_bert_flow.stages.registry import STAGES
from keras_bert_flow.terminal import JOINERS, abridge, escape_controls

SHOWN_DIGITS = 8  # of a key, in the column that may name several
UNITS = (("d", 86400), ("h", 3600), ("min", 60))
# stage → input in its manifest → option that takes it; the pattern `*` stands for a number
OPTIONS = {
    "records": {"vocabulary": "--vocab"},
    "pretraining": {"records": "--records", "initial_model": "--initial-model"},
    "distillation": {"records": "--records", "teacher": "--teacher"},
    "finetuning": {"model": "--model"},
    "evaluation": {"finetuned": "--finetuned", "records": "--records"},
}
TEXT, TABLES = ("vocabulary", "records"), ("finetuning", "evaluation")  # stages that read text, and a task's tables


def as_values(result: Result, uses: Sequence[Result], now: float) -> dict[str, Any]:
    """Return a result as JSON-like values: sizes in bytes, ages in seconds."""
    return {
        "stage": result.stage,
        "name": result.name,
        "key": result.key,
        "state": result.state,
        "fault": result.fault,
        "folder": str(result.folder),
        "bytes": result.file_bytes,
        "age_seconds": round(max(0.0, now - result.changed_at), 1),
        "made_by": describe_maker(result),
        "revision": result.manifest.revision if result.manifest else None,
        "owner": result.owner,
        "needed_by": [other.key for other in uses],
    }


def as_row(result: Result, uses: Sequence[Result], now: float) -> list[str]:
    """Return a result's table row: stage, name, key, state, size, age, what made it, what was made from it."""
    state = result.state if result.state == "whole" else f"{result.state}: {result.fault}".rstrip(": ")
    if result.owner:
        state = f"in work: {result.owner}"
    needed = ", ".join(f"{other.stage} {other.key[:SHOWN_DIGITS]}" for other in uses)
    size, age = f"{result.file_bytes / 1e6:,.1f} MB", show_age(now - result.changed_at)
    return [result.stage, result.name or "-", result.key, size, age, describe_maker(result), needed or "-", state]


HEADINGS = ["stage", "name", "key", "size", "age", "made by", "needed by", "state"]


def align(rows: Sequence[Sequence[str]]) -> str:
    """Align rows in columns; the last column may be long."""
    rows = [[escape_controls(abridge(cell), JOINERS) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def show_age(seconds: float) -> str:
    """Format an age in its largest unit."""
    for unit, length in UNITS:
        if seconds >= length:
            return f"{int(seconds // length)} {unit}"
    return f"{max(0, int(seconds))} s"


def describe_maker(result: Result) -> str:
    """Return which command, of which version of this package, made a result, and the revision of its stage."""
    stage, manifest = STAGES.get(result.stage), result.manifest
    revision = "" if manifest is None or manifest.revision is None else f"revision {manifest.revision}"
    return " ".join(
        filter(None, (f"kbf {stage.command}" if stage else "?", manifest.version if manifest else "", revision))
    )


def describe_source(source: Source) -> str:
    """Return a description of where an input came from."""
    if source.results:
        first, *others = source.results
        also = f", also in {', '.join(other.key for other in others)}" if others else ""
        return f"{first.stage} {first.key}{f', its {source.part}' if source.part else ''}{also}"
    sha256 = source.digest.rpartition(":")[2][:12]
    return f"from outside this store, content {sha256}" if source.digest.isprintable() else "from outside this store"


def draw_tree(result: Result, results: Sequence[Result]) -> list[str]:
    """Draw the tree of everything that a result was made from, down to the text."""
    lines, drawn = [f"{result.stage} {result.key}  {result.folder}"], {result.folder}

    def draw(parent: Result, margin: str) -> None:
        sources = list_sources(parent, results)
        for number, source in enumerate(sources):
            is_last = number == len(sources) - 1
            line = f"{margin}{'└─' if is_last else '├─'} {source.name}: {describe_source(source)}"
            held = source.results[0] if source.results else None
            is_drawn = held is not None and held.folder in drawn
            lines.append(line + (" (see above)" if is_drawn else ""))
            if held is not None and not is_drawn:
                drawn.add(held.folder)
                draw(held, f"{margin}{'   ' if is_last else '│  '}")

    draw(result, "")
    return [escape_controls(line, JOINERS) for line in lines]


def list_commands(result: Result, results: Sequence[Result]) -> list[str]:
    """Return the commands that reproduce a result, starting from the text, with all non-default settings.

    A manifest records the content of text but not its path: TEXT and TABLES are placeholders for the paths.
    """
    return [_write_command(made, sources) for made, sources in walk_sources(result, results)]


def _write_command(result: Result, sources: Sequence[Source]) -> str:
    stage = STAGES.get(result.stage)
    if stage is None:
        return f"# {result.folder}: its stage is not known"
    words = ["kbf", stage.command]
    inputs = {source.name: source for source in sources}
    for name, option in OPTIONS.get(result.stage, {}).items():
        if name in inputs:
            words += [option, _find_place(inputs[name])]
    if result.stage == "evaluation":
        phases = [source for name, source in inputs.items() if name.startswith("pretrained-")]
        words += ["--pretrained", _find_place(phases[-1])] if phases else []
        words += [word for phase in phases[:-1] for word in ("--earlier", _find_place(phase))]
    if result.stage in TEXT:
        text = [source for name, source in inputs.items() if name.startswith("corpus-")]
        places = [_find_place(source) for source in text if source.results]
        words += [word for place in places for word in ("--input", place)] or ["--input", "TEXT"]
    if result.stage in TABLES:
        words += ["--config", "CONFIG"]
    if result.stage != "corpus":
        for name, value in list_changed(result).items():
            if name.split(".")[0] not in ("corpus", "beam"):
                words += ["--set", f"{name}={as_yaml(value)}"]
    return shlex.join([*words, "--output", str(result.output)])


def _find_place(source: Source) -> str:
    if not source.results:
        return source.name.upper()
    return str(source.results[0].folder / source.part)
