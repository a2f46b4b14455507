"""Format results for people and for programs, and compare their settings and scores."""

import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.console.terminal import JOINERS, escape_controls, fit
from keras_bert_flow.files.documents import read_json_object
from keras_bert_flow.results.lineage import Result, Source, list_sources, walk_sources
from keras_bert_flow.results.manifest import is_measurement
from keras_bert_flow.results.stages import STAGES

# Settings and scores of results: flattened to dotted names, compared, and as command-line options.

SCORES = "metrics.json"  # of pre-training, distillation and evaluation
RUNS = "run.json"  # of each model of a fine-tuning
MOVED = {"cased": "vocabulary.cased", "seed": "seed"}  # settings in the manifest of records from other sections
NOT_SETTINGS = {"name", "runs", "loggers", "tuning", "vocabulary.vocabulary_size", "records.vocabulary_size"}
Flat = dict[str, Any]


def flatten(values: Mapping[str, Any], prefix: str = "") -> Flat:
    """Flatten nested values to dotted names; lists are not flattened."""
    flat: Flat = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def read_settings(result: Result) -> Flat:
    """Return the settings in a manifest, by their names in a configuration."""
    config = result.manifest.config if result.manifest else {}
    if result.stage not in PipelineConfig.model_fields or result.stage in config:
        return flatten(config)
    section: Any = PipelineConfig.model_fields[result.stage].annotation
    own = {name: value for name, value in config.items() if name not in MOVED or name in section.model_fields}
    moved = {MOVED[name]: value for name, value in config.items() if name not in own}
    return flatten({result.stage: own}) | moved


def read_scores(result: Result) -> Flat:
    """Return the scores in the files of a whole result, and the counters of its manifest, without measurements.

    Raises:
        OSError, ValueError: a file that the manifest lists cannot be read.
    """
    if result.manifest is None or result.state != "whole":
        return {}
    scores = flatten(result.manifest.counters)
    for file in result.manifest.files:
        name = file.name.rpartition("/")[2]
        if file.name == SCORES:
            scores |= flatten(read_json_object(result.folder / file.name))
        elif name == RUNS:
            score = read_json_object(result.folder / file.name).get("score")
            scores |= {} if score is None else {f"{file.name.removesuffix(f'/{RUNS}')} score": score}
    return {name: value for name, value in scores.items() if not is_measurement(name.rpartition(".")[2])}


def list_differences(first: Flat, second: Flat) -> list[tuple[str, Any, Any]]:
    """Return (name, first value, second value) for values that differ; None if one lacks the name."""
    names = sorted(first.keys() | second.keys())
    return [(name, first.get(name), second.get(name)) for name in names if first.get(name) != second.get(name)]


def as_yaml(value: Any) -> str:
    """Format a value for `--set`."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


SHOWN_DIGITS = 8  # of a short key
UNITS = (("d", 86400), ("h", 3600), ("min", 60))


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


def as_row(result: Result, uses: Sequence[Result], now: float, is_short: bool = False) -> list[str]:
    """Return a result's table row: stage, name, key, state, size, age, what made it, what was made from it.

    Args:
        is_short: whether the key is to be short.
    """
    state = result.state if result.state == "whole" else f"{result.state}: {result.fault}".rstrip(": ")
    if result.owner:
        state = f"in work: {result.owner}"
    needed = ", ".join(f"{other.stage} {short_key(other.key)}" for other in uses)
    size, seconds = f"{result.file_bytes / 1e6:,.1f} MB", now - result.changed_at
    largest = (f"{int(seconds // length)} {unit}" for unit, length in UNITS if seconds >= length)
    age = next(largest, f"{max(0, int(seconds))} s")
    key = short_key(result.key) if is_short else result.key
    return [result.stage, result.name or "-", key, size, age, describe_maker(result), needed or "-", state]


HEADINGS = ["stage", "name", "key", "size", "age", "made by", "needed by", "state"]


def align(rows: Sequence[Sequence[str]], columns: int | None = None) -> str:
    """Align rows in columns.

    Args:
        columns: the width to wrap the cells to; None for lines of any length.
    """
    if columns is not None:
        return fit(rows, columns)
    rows = [[escape_controls(cell, JOINERS) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def describe_maker(result: Result) -> str:
    """Return which command, of which version of this package, made a result, and the revision of its stage."""
    stage, manifest = STAGES.get(result.stage), result.manifest
    revision = "" if manifest is None or manifest.revision is None else f"revision {manifest.revision}"
    return " ".join(
        filter(None, (f"kbf {stage.command}" if stage else "?", manifest.version if manifest else "", revision))
    )


def short_key(key: str) -> str:
    """Return the first digits of a key, by which commands find it too."""
    return key[:SHOWN_DIGITS]


def describe_source(source: Source, is_short: bool = False) -> str:
    """Return a description of where an input came from; with short keys if wanted."""
    if source.results:
        first, *others = source.results
        write = short_key if is_short else str
        also = f", also in {', '.join(write(other.key) for other in others)}" if others else ""
        return f"{first.stage} {write(first.key)}{f', its {source.part}' if source.part else ''}{also}"
    sha256 = source.digest.rpartition(":")[2]
    if source.digest.startswith("["):  # of a folder: the names and digests of its files
        sha256 = hashlib.sha256(source.digest.encode()).hexdigest()
    return f"from outside this store{f', content {sha256[:12]}' if source.digest.isprintable() else ''}"


def draw_tree(result: Result, results: Sequence[Result], part: str = "", columns: int | None = None) -> list[str]:
    """Draw the tree of everything that a result was made from, down to the text.

    Args:
        part: a part of the result, such as a model, which the tree is of.
        columns: the width to fit the lines into, with short keys; None for lines of any length.
    """
    key, place = result.key, str(result.folder)
    if columns is not None:
        folder, here = result.folder.absolute(), Path.cwd()
        is_near = folder.is_relative_to(here)
        key = short_key(key)
        place = str(folder.relative_to(here)) if is_near else "…/" + "/".join(folder.parts[-2:])
    lines, drawn = [f"{f'{part} of ' if part else ''}{result.stage} {key}  {place}"], {result.folder}

    def draw(parent: Result, margin: str) -> None:
        sources = list_sources(parent, results)
        for number, source in enumerate(sources):
            is_last = number == len(sources) - 1
            held = source.results[0] if source.results else None
            is_drawn = held is not None and held.folder in drawn
            text = f"{source.name}: {describe_source(source, columns is not None)}{' (see above)' if is_drawn else ''}"
            lines.append(f"{margin}{'└─' if is_last else '├─'} {text}")
            if held is not None and not is_drawn:
                drawn.add(held.folder)
                draw(held, f"{margin}{'   ' if is_last else '│  '}")

    draw(result, "")
    lines = [escape_controls(line, JOINERS) for line in lines]
    if columns is None:
        return lines
    return [part for line in lines for part in wrap(line, columns, subsequent_indent="      ")]


def list_commands(
    result: Result, results: Sequence[Result], base: Path | None = None, columns: int | None = None
) -> list[str]:
    """Return the commands that reproduce a result, starting from the text, with all non-default settings.

    A manifest records the content of text but not its path: TEXT and CONFIG are placeholders for the paths.

    Args:
        base: folder that the paths are relative to; None for absolute ones.
        columns: the width to fit lines into, each but the last continued by a backslash; None for one line a command.
    """
    commands = [_write_command(made, sources, base) for made, sources in walk_sources(result, results)]
    return [_break_lines(words, columns) if columns else shlex.join(words) for words in commands]


def _break_lines(words: Sequence[str], columns: int) -> str:
    """Break a command before its options, as a shell reads it."""
    pieces: list[str] = []
    for word in words:
        is_value = pieces and pieces[-1].startswith("--") and " " not in pieces[-1]
        if is_value and not word.startswith("--"):
            pieces[-1] += f" {shlex.quote(word)}"
        else:
            pieces.append(shlex.quote(word))
    lines = [pieces[0]]
    for piece in pieces[1:]:
        if len(lines[-1]) + len(piece) + 3 > columns:  # a space before it, and one before a backslash
            lines.append(f"    {piece}")
        else:
            lines[-1] += f" {piece}"
    return " \\\n".join(lines)


def _write_command(result: Result, sources: Sequence[Source], base: Path | None) -> list[str]:
    def name_place(path: Path) -> str:
        return str(path.relative_to(base)) if base is not None and path.is_relative_to(base) else str(path)

    stage = STAGES.get(result.stage)
    if stage is None:
        return ["#", f"{result.folder}: its stage is not known"]
    words = ["kbf", stage.command]
    held = {source.name: source for source in sources}
    places = {name: name_place(one.results[0].folder / one.part) for name, one in held.items() if one.results}
    inputs = {name: places.get(name, name.upper()) for name in held}
    for name, option in stage.options.items():
        if name in inputs:
            words += [option, inputs[name]]
    if result.stage == "evaluation":
        phases = [place for name, place in inputs.items() if name.startswith("pretrained-")]
        words += ["--pretrained", phases[-1]] if phases else []
        words += [word for phase in phases[:-1] for word in ("--earlier", phase)]
    if stage.reads_text:
        text = [place for name, place in places.items() if name.startswith("corpus-")]
        words += [word for place in text for word in ("--input", place)] or ["--input", "TEXT"]
    if stage.reads_tables:
        words += ["--config", "CONFIG"]
    if result.stage != "corpus":
        defaults = flatten(PipelineConfig().model_dump(mode="json"))
        for name, value in read_settings(result).items():
            section = name.split(".")[0]
            is_setting = section in PipelineConfig.model_fields and name not in NOT_SETTINGS
            if is_setting and section not in ("corpus", "beam") and defaults.get(name) != value:
                words += ["--set", f"{name}={as_yaml(value)}"]
    return [*words, "--output", name_place(result.output)]
