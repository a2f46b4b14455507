"""Find results by key, folder or configuration, their chain of sources, and the links to the newest ones."""

import logging
import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from keras_bert_flow.config.limits import BUILTIN
from keras_bert_flow.config.loading import load_config
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.console.terminal import abridge
from keras_bert_flow.files.documents import read_json_object
from keras_bert_flow.files.outputs import MANIFEST
from keras_bert_flow.files.paths import check_local, find_address
from keras_bert_flow.results.artifacts import file_digest
from keras_bert_flow.results.lineage import (
    MODEL_LINK,
    REPORT_LINKS,
    Result,
    find_links,
    find_part,
    find_results,
    find_source,
    list_sources,
    read_result,
    store_of,
    walk_sources,
)
from keras_bert_flow.results.stages.registry import STAGES

SHOWN = 8
STORE = Path("runs")
WEIGHTS = "*.safetensors"  # files of a model directory that its copies have unchanged


def find_one(key: str, store: Path) -> tuple[Result, list[Result]]:
    """Return the result with a key, or in a folder, and all results of its store.

    Raises:
        FileNotFoundError: there is no such store.
        ValueError: no result has that key, or several have.
    """
    if (Path(key) / MANIFEST).is_file():
        return read_given(Path(key), None)
    if Path(key).absolute().parent.name in STAGES and Path(key).is_dir():  # one without a manifest, which is listed too
        results = find_results(store_of(Path(key)))
        if given := [result for result in results if _is_same(result.folder, Path(key))]:
            return given[0], results
    results = find_results(store)
    found = [result for result in results if result.key == key] or [
        result for result in results if key and result.key.startswith(key)
    ]
    if len(found) == 1:
        return found[0], results
    keys = ", ".join(f"{result.stage} {result.key}" for result in (found or results)[:SHOWN])
    if found:
        raise ValueError(f"A key must be that of one result. Received: {key}, of {len(found)}: {keys}. Give a folder.")
    raise ValueError(
        f"A key must be one in the store. Received: {abridge(key)}, not in {store}. "
        f"{f'There are: {keys}.' if results else 'It is empty.'} `kbf runs list` shows all."
    )


def read_given(folder: Path, store: Path | None) -> tuple[Result, list[Result]]:
    """Return the result in a folder, and the results that it may have been made from.

    Raises:
        FileNotFoundError: it has no manifest.
        ValueError: its manifest is damaged.
    """
    if not (folder / MANIFEST).is_file():
        raise FileNotFoundError(
            f"A result must hold {MANIFEST}. Received: {folder}. Give what a stage published, such as what "
            "`kbf runs list` shows, or a model."
        )
    result = read_result(folder)
    if result.manifest is None:
        raise ValueError(f"A manifest must be whole. Received: {folder / MANIFEST}, damaged. Build the folder again.")
    results = find_results(store_of(folder) if store is None else store)
    return next((other for other in results if _is_same(other.folder, folder)), result), results


def read_made(folder: Path, store: Path | None) -> tuple[Result, str, list[Result]]:
    """Return the result that a folder is or is part of, which part it is, and the results that it may be made from.

    A model that was copied elsewhere is found by its weights.

    Args:
        folder: a result, a model directory in one, or a copy of such a directory.
        store: where to look for the results. None: around the result; for a copy, `runs`.
    Raises:
        FileNotFoundError: it is none of these, or no result has these weights.
        ValueError: the manifest is damaged.
    """
    real = folder.resolve()
    if (folder / MANIFEST).is_file():
        result, results = read_given(folder, store)
        return result, "", results
    weights = sorted(folder.glob(WEIGHTS))
    holder = next((parent for parent in real.parents if (parent / MANIFEST).is_file()), None)
    if weights and holder is not None:
        result, results = read_given(holder, store)
        return result, real.relative_to(holder).as_posix(), results
    if not weights:
        read_given(folder, store)  # says what a result is
    place = STORE if store is None else store
    digest = ",".join(f"{file.name}:{file_digest(file)}" for file in weights)
    results = find_results(place) if store is not None or place.is_dir() else []
    for result in results:
        part = find_part(digest, result.manifest) if result.manifest and result.state == "whole" else None
        if part is not None:
            return result, part, results
    raise FileNotFoundError(
        f"A model must be one that a result holds. Received: {folder}, whose weights none in {place} has. Give the "
        "folder of the results that it was made in as --runs."
    )


def list_chain(result: Result, results: Sequence[Result]) -> list[dict[str, Any]]:
    """Return a result and everything that it was made from, each once, starting from the text."""
    chain = []
    for made, sources in walk_sources(result, results):
        inputs = {source.name: [held.key for held in source.results] for source in sources}
        chain.append({"stage": made.stage, "key": made.key, "folder": str(made.folder), "inputs": inputs})
    return chain


def _is_same(first: Path, second: Path) -> bool:
    return first.exists() and second.exists() and first.samefile(second)


# Find the model that the runs of a configuration have made, so that its file can stand for the model.

# Sections that decide what a model is.
COMPARED = ("corpus", "vocabulary", "records", "model", "pretraining", "task", "finetuning")
SEED_RUNS = "pretrained/seed-*/run.json"

_logger = logging.getLogger(__name__)


def find_model(config: str | Path) -> Path:
    """Return the model directory of the newest finished run of a configuration, of the seed that is best on dev.

    A warning says which it is, and which sections of the configuration have changed since.

    Raises:
        FileNotFoundError: there is no such file, or no run of that `name` is finished.
        ValueError: the configuration is damaged.
    Example:
        >>> model = kbf.find_model("run.yaml")
        >>> model.relative_to("runs").as_posix()
        'finetuning/1/pretrained/seed-1/model'
    """
    settings = load_config(config)
    store = check_local(settings.runs)
    results = find_results(store) if store.is_dir() else []
    named = [result for result in results if result.stage == "evaluation" and _is_of(result, settings)]
    for report in sorted(named, key=lambda result: result.changed_at, reverse=True):
        finetuned = next((held for source in list_sources(report, results) for held in source.results
                          if source.name == "finetuned"), None)  # fmt: skip
        if finetuned is not None and (found := find_best(finetuned.folder)):
            best, score, count = found
            changed = _list_changes(settings, report)
            since = f", made with another {', '.join(changed)}" if changed else ""
            _logger.warning(
                "%s is %s, the best of %d on dev (%.4g)%s.",
                *(config, best, count, score, since),
            )
            return best
    raise FileNotFoundError(
        f"A configuration must have a finished run to stand for its model. Received: {config}, and none of "
        f"`name: {settings.name}` in {settings.runs}. kbf run {config}"
    )


def find_best(finetuned: Path) -> tuple[Path, float, int] | None:
    """Return the model of a fine-tuning that is best on dev, its score, and the number of models; None without one."""
    runs = {path.parent / "model": read_json_object(path) for path in finetuned.glob(SEED_RUNS)}
    runs = {model: run for model, run in runs.items() if (model / "config.json").is_file()}
    if not runs:
        return None
    best = max(runs, key=lambda model: (runs[model]["score"], -runs[model]["seed"]))
    return best, runs[best]["score"], len(runs)


def _is_of(result: Result, settings: PipelineConfig) -> bool:
    return (
        result.state == "whole" and result.manifest is not None and result.manifest.config.get("name") == settings.name
    )


def _list_changes(settings: PipelineConfig, report: Result) -> list[str]:
    """Return the sections in which a configuration differs from what a report was made with."""
    ours, theirs = settings.model_dump(mode="json"), report.manifest.config if report.manifest else {}
    return [name for name in COMPARED if name in theirs and not _are_same(ours.get(name), theirs[name])]


def _are_same(ours: Any, theirs: Any) -> bool:
    """Compare values, of which relative paths may have become absolute, and what is built in a path."""
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        return all(_are_same(ours[name], theirs[name]) for name in ours.keys() & theirs.keys())
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(_are_same, ours, theirs))
    if isinstance(ours, str) and isinstance(theirs, str):
        return ours in (theirs, BUILTIN) or os.path.abspath(ours) == theirs
    return ours == theirs or ours == [BUILTIN]


# Links in `runs/NAME/` that lead to the newest report and the newest model of the configuration of that name.

TAKEN = {*STAGES, "configs"}  # folders of a store that are no run's
MOST_BYTES = 200  # of a file name, of which most file systems take 255


def link_newest(evaluation: Path, name: str) -> Path | None:
    """Point the links of a name to a report and to the best of the models that it is of; return their folder.

    Each link is relative and replaced atomically. None, and nothing changed, where the results are not on this disk,
    no folder can have the name, or the file system has no links: a run is as good without them.

    Args:
        evaluation: folder of the report.
        name: `name` of the configuration.
    """
    if find_address(evaluation) or (folder := find_folder(store_of(evaluation), name)) is None:
        return None
    targets = {report: evaluation / report for report in REPORT_LINKS if (evaluation / report).is_file()}
    with suppress(OSError, ValueError):
        finetuned = find_source(evaluation, "finetuned")
        if finetuned is not None and (best := find_best(finetuned)):
            targets[MODEL_LINK] = best[0]
        folder.mkdir(exist_ok=True)
        for link, target in targets.items():
            _replace_link(folder / link, target)
        return folder
    with suppress(OSError):  # one that was there, or has links of an earlier run
        folder.rmdir()
    return None


def find_folder(store: Path, name: str) -> Path | None:
    """Return the folder of a name's links; None if the store cannot have it or has something else there."""
    cleaned = "".join(letter if letter.isprintable() and letter not in "/\\" else "-" for letter in name).strip(". ")
    if not cleaned or cleaned in TAKEN or len(os.fsencode(cleaned)) > MOST_BYTES:
        return None
    folder = store / cleaned
    is_free = not os.path.lexists(folder) or (folder.is_dir() and not folder.is_symlink())
    return folder if is_free and not os.path.lexists(folder / MANIFEST) else None


def remove_dangling(store: Path) -> list[Path]:
    """Remove the links that lead nowhere, and their folder if nothing else is in it; return them."""
    dangling = [link for link in find_links(store) if not link.exists()]
    for link in dangling:
        link.unlink(missing_ok=True)
        with suppress(OSError):  # something else is in it
            link.parent.rmdir()
    return dangling


def _replace_link(link: Path, target: Path) -> None:
    """Make a relative link, or replace one; a file or folder of that name is left alone."""
    if os.path.lexists(link) and not link.is_symlink():
        return
    with tempfile.TemporaryDirectory(prefix=".", dir=link.parent) as folder:
        made = Path(folder) / link.name
        made.symlink_to(os.path.relpath(target.resolve(), link.parent.resolve()), target_is_directory=target.is_dir())
        os.replace(made, link)
