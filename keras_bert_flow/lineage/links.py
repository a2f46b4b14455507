"""Find which result was made from which, by matching the input digests of manifests with the files of other results.

An input is identified by its content in three ways: a file by its sha256, a published folder by the digests of its
files as JSON, and a model directory by the `name:sha256` of its files.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from keras_bert_flow.lineage.results import Result, find_results, read_result, store_of
from keras_bert_flow.records.manifest import Manifest, manifest_digest
from keras_bert_flow.stages.registry import STAGES

SHA256 = re.compile("[0-9a-f]{64}")
TOKENIZER_FILES = ("vocab.txt", "tokenizer.json")
TOKENIZER = "vocabulary"  # records hold a copy of it, and their manifest may not list it as an input


@dataclass(frozen=True)
class Source:
    """An input of a result, and the results that hold it.

    Attributes:
        name: name of the input in the manifest.
        digest: digest of its content, as in the manifest.
        results: results with this content of the earliest stage that has any, oldest first; empty if it is external.
        part: which part of these results: a file, a model directory, or "" for the whole folder.
    """

    name: str
    digest: str
    results: tuple[Result, ...] = ()
    part: str = ""


def list_sources(result: Result, results: Sequence[Result]) -> list[Source]:
    """Return the inputs of a result, in the order of its manifest; empty if it has no manifest."""
    if result.manifest is None:
        return []
    inputs = [*result.manifest.inputs.items(), *_copied_tokenizer(result)]
    return [_find_source(result, name, digest, results) for name, digest in inputs]


def walk_sources(result: Result, results: Sequence[Result]) -> Iterator[tuple[Result, list[Source]]]:
    """Yield a result and everything that it was made from, each once and after its own sources."""
    seen: set[Path] = set()

    def walk(made: Result) -> Iterator[tuple[Result, list[Source]]]:
        seen.add(made.folder)
        sources = list_sources(made, results)
        for source in sources:
            for held in source.results[:1]:
                if held.folder not in seen:
                    yield from walk(held)
        yield made, sources

    return walk(result)


def list_uses(results: Sequence[Result]) -> dict[Path, list[Result]]:
    """Return, for the folder of each result, the results made directly from it."""
    uses: dict[Path, list[Result]] = {result.folder: [] for result in results}
    for result in results:
        for folder in dict.fromkeys(held.folder for source in list_sources(result, results) for held in source.results):
            uses[folder].append(result)
    return uses


def find_source(folder: Path, name: str) -> Path | None:
    """Return the folder in the same store that an input of a result came from; None if there is none."""
    results = find_results(store_of(folder))
    for source in list_sources(read_result(folder), results):
        if source.name == name and source.results:
            return source.results[0].folder
    return None


def _find_source(result: Result, name: str, digest: str, results: Sequence[Result]) -> Source:
    order = {stage: number for number, stage in enumerate(STAGES)}
    own = order.get(result.stage, len(order))
    is_file = SHA256.fullmatch(digest) is not None
    holders: list[tuple[int, str, Result]] = []
    for other in results:
        place = order.get(other.stage, len(order))
        # A copy in a result of a later stage is no source, nor is a file of the same stage; a model of it may be.
        if other.manifest is None or other.folder == result.folder or place > own or (place == own and is_file):
            continue
        part = find_part(digest, other.manifest)
        if part is not None:
            holders.append((place, part, other))
    if not holders:
        return Source(name, digest)
    # A result continued from a model of the same stage has that as its source; others come from the earliest stage.
    first = min(place for place, _, _ in holders)
    chosen = [(part, other) for place, part, other in holders if place == first]
    return Source(name, digest, tuple(other for _, other in chosen), chosen[0][0])


def find_part(digest: str, manifest: Manifest) -> str | None:
    """Return the part of a result with this content: a file, a folder in it, or "" for all of it; None if none has."""
    if digest.startswith("["):
        return "" if digest == manifest_digest(manifest) else None
    if SHA256.fullmatch(digest):
        return next((file.name for file in manifest.files if file.sha256 == digest), None)
    wanted = [entry.rpartition(":")[::2] for entry in digest.split(",")]
    if not all(name and SHA256.fullmatch(sha256) for name, sha256 in wanted):
        return None
    files = {file.name: file.sha256 for file in manifest.files}
    for prefix in _list_folders(files):
        if all(files.get(f"{prefix}{name}") == sha256 for name, sha256 in wanted):
            return prefix.rstrip("/")
    return None


def _list_folders(files: dict[str, str]) -> list[str]:
    """Return the folders that contain the files, each with a trailing slash, and "" for the outermost one."""
    folders = {str(folder) for name in files for folder in PurePosixPath(name).parents}
    return sorted("" if folder == "." else f"{folder}/" for folder in folders)


def _copied_tokenizer(result: Result) -> Iterator[tuple[str, str]]:
    """Yield the tokenizer that records hold a copy of, as an input."""
    if result.stage != "records" or result.manifest is None or TOKENIZER in result.manifest.inputs:
        return
    digests = {file.name: file.sha256 for file in result.manifest.files}
    yield from ((TOKENIZER, digests[name]) for name in TOKENIZER_FILES if name in digests)
