"""Find a result by key or folder, and list the chain of results that it was made from."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keras_bert_flow.lineage.links import walk_sources
from keras_bert_flow.lineage.results import Result, find_results, read_result, store_of
from keras_bert_flow.outputs import MANIFEST
from keras_bert_flow.terminal import abridge

SHOWN = 8


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
            "`kbf runs list` shows."
        )
    result = read_result(folder)
    if result.manifest is None:
        raise ValueError(f"A manifest must be whole. Received: {folder / MANIFEST}, damaged. Build the folder again.")
    results = find_results(store_of(folder) if store is None else store)
    return next((other for other in results if _is_same(other.folder, folder)), result), results


def list_chain(result: Result, results: Sequence[Result]) -> list[dict[str, Any]]:
    """Return a result and everything that it was made from, each once, starting from the text."""
    chain = []
    for made, sources in walk_sources(result, results):
        inputs = {source.name: [held.key for held in source.results] for source in sources}
        chain.append({"stage": made.stage, "key": made.key, "folder": str(made.folder), "inputs": inputs})
    return chain


def _is_same(first: Path, second: Path) -> bool:
    return first.exists() and second.exists() and first.samefile(second)
