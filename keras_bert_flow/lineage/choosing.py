"""Find a result by key or folder, and list the chain of results that it was made from."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keras_bert_flow.artifacts import file_digest
from keras_bert_flow.lineage.links import find_part, walk_sources
from keras_bert_flow.lineage.results import Result, find_results, read_result, store_of
from keras_bert_flow.outputs import MANIFEST
from keras_bert_flow.terminal import abridge

SHOWN = 8
RUNS = Path("runs")
WEIGHTS = "*.safetensors"  # files of a model directory that its copies have unchanged


def find_one(key: str, store: Path) -> tuple[Result, list[Result]]:
    """Return the result with a key, or in a folder, and all results of its store.

    Raises:
        FileNotFoundError: there is no such store.
        ValueError: no result has that key, or several have.
    """
    if (Path(key) / MANIFEST).is_file():
        return read_given(Path(key), None)
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
    place = RUNS if store is None else store
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
