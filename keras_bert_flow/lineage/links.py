"""Tell which result was made from which: the digests of a manifest's inputs are those of another's files.

An input is named by its content in three ways: a file by its sha256, a published folder by the digests of its files
in the form of JSON, and a model directory by `name:sha256` of its files.
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
TOKENIZER = "vocabulary"  # the records hold a copy of it, and their manifest has no digest of it as an input


@dataclass(frozen=True)
class Source:
    """An input of a result, and the results that hold it.

    Attributes:
        name: of the input in the manifest.
        digest: of its content, as the manifest has it.
        results: those of the earliest stage that hold this content, the oldest first; none where it came from outside.
        part: of these results: a file, a model directory, or "" for the whole folder.
    """

    name: str
    digest: str
    results: tuple[Result, ...] = ()
    part: str = ""


def list_sources(result: Result, results: Sequence[Result]) -> list[Source]:
    """Return what a result was made from, in the order of the manifest; nothing where it has no manifest."""
    if result.manifest is None:
        return []
    inputs = [*result.manifest.inputs.items(), *_copied_tokenizer(result)]
    return [_find_source(result, name, digest, results) for name, digest in inputs]


def walk_sources(result: Result, results: Sequence[Result]) -> Iterator[tuple[Result, list[Source]]]:
    """Yield a result and what it was made from, each once and behind its own sources, from the text on."""
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
    """Return for the folder of each result those that were made from it, directly."""
    uses: dict[Path, list[Result]] = {result.folder: [] for result in results}
    for result in results:
        for folder in dict.fromkeys(held.folder for source in list_sources(result, results) for held in source.results):
            uses[folder].append(result)
    return uses


def find_source(folder: Path, name: str) -> Path | None:
    """Return the folder, in the same store, that an input of a result came from; None where there is none."""
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
        # A copy in a result of the same stage or a later one is no source; a model may be of the same stage.
        if other.manifest is None or other.folder == result.folder or place > own or (place == own and is_file):
            continue
        part = _find_part(digest, other.manifest)
        if part is not None:
            holders.append((place, part, other))
    if not holders:
        return Source(name, digest)
    # What was begun with a model of the same stage needs that one; all else comes from the earliest stage.
    first = min(place for place, _, _ in holders)
    chosen = [(part, other) for place, part, other in holders if place == first]
    return Source(name, digest, tuple(other for _, other in chosen), chosen[0][0])


def _find_part(digest: str, manifest: Manifest) -> str | None:
    """Return what of a result has this content: a file, a folder in it, "" for all of it; None where nothing has."""
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
    """Return the folders of files, each with a slash at its end, and "" for the one around them."""
    folders = {str(folder) for name in files for folder in PurePosixPath(name).parents}
    return sorted("" if folder == "." else f"{folder}/" for folder in folders)


def _copied_tokenizer(result: Result) -> Iterator[tuple[str, str]]:
    """Yield the tokenizer of records, of which they hold a copy."""
    if result.stage != "records" or result.manifest is None or TOKENIZER in result.manifest.inputs:
        return
    digests = {file.name: file.sha256 for file in result.manifest.files}
    yield from ((TOKENIZER, digests[name]) for name in TOKENIZER_FILES if name in digests)
