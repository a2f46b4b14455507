"""Manifests and costs: `manifest.json` lists a published folder's files, which are checked against it before use."""

import hashlib
import json
import os
import resource
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from keras_bert_flow.config.machine import describe_machine, read_peak_memory
from keras_bert_flow.files.documents import Read, parse_json, read_file, read_json
from keras_bert_flow.files.inputs import find_carrier
from keras_bert_flow.files.outputs import MANIFEST
from keras_bert_flow.results.artifacts import (
    OpenedFiles,
    canonical_json,
    file_digest,
    package_version,
    write_atomically,
)

# Record what each published folder cost: time, memory and machine.
#
# `costs.jsonl` has one line per process that worked on the folder and was not killed. The manifest leaves it out: equal
# results have equal manifests, whoever made them and however long it took.

COSTS = "costs.jsonl"
_WHO = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)


@dataclass(frozen=True)
class Cost:
    """The cost of one process.

    Attributes:
        began: date and time in UTC, in ISO 8601 format.
        seconds: wall-clock time.
        processor_seconds: CPU time of the process and of its child processes that have ended.
        peak_bytes: peak memory of the largest of these.
        machine: processor and GPUs.
    """

    began: str
    seconds: float
    processor_seconds: float
    peak_bytes: int
    machine: str


@contextmanager
def noting_cost(folder: Path) -> Iterator[None]:
    """Append the cost of the block to the folder's `costs.jsonl`, also on an error, unless the folder is empty."""
    began, started, spent = datetime.now(UTC), time.monotonic(), _processor_seconds()
    try:
        yield
    finally:
        cost = Cost(
            began.isoformat(timespec="seconds"),
            round(time.monotonic() - started, 3),
            round(_processor_seconds() - spent, 3),
            max(map(read_peak_memory, _WHO)),
            describe_machine(),
        )
        if folder.is_dir() and any(folder.iterdir()):
            # Not on a full disk, or in a missing folder, which the work itself reports.
            with suppress(OSError), open(folder / COSTS, "a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(cost)) + "\n")
                file.flush()
                os.fsync(file.fileno())


def read_costs(folder: str | Path) -> list[Cost]:
    """Return the recorded costs, oldest first, without damaged lines; empty if there are none."""
    path, costs = Path(folder) / COSTS, []
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError:
        return []
    for line in lines:
        try:
            cost = Cost(**parse_json(line))
            datetime.fromisoformat(cost.began)
            if min(cost.seconds, cost.processor_seconds, cost.peak_bytes) >= 0 and isinstance(cost.machine, str):
                costs.append(cost)
        except (ValueError, TypeError):
            continue
    return costs


def _processor_seconds() -> float:
    spent = [resource.getrusage(who) for who in _WHO]
    return sum(usage.ru_utime + usage.ru_stime for usage in spent)


# Separate results from measurements in the files of a published folder: content keys use the results only.
#
# A measurement is what differs between equal runs: time, speed, memory, machine, date and paths. A field is one by its
# name, wherever it is; a new one ends in one of `MEASURED_SUFFIXES`.

# Files for people, with measurements, from which nothing is made.
INFORMATIONAL = {
    "README.md",
    "log.jsonl",
    "events.out.tfevents.log",
    "rejected_inputs.txt",
    "report.html",
    "report.md",
}
# JSON files of scores and measurements, from which reports are made.
SCORES = {"run.json", "grid.json", "grid-random.json", "label-counts.json", "metrics.json"}
ADAPTER = "adapter_config.json"  # names the path of its base
MEASURED_SUFFIXES = ("seconds", "_per_second", "peak_bytes")
# The devices and machine, when it began, in how many parts, where the base of an adapter is and where a run was copied
# from; and what it was made from, which is in its key.
MEASURED = {"devices", "machine", "began", "parts", "base_model_name_or_path", "reused_from", "identity"}


def digest_results(path: Path) -> str | None:
    """Return the sha256 of the results in a file; None for a file without measurements."""
    if path.name not in SCORES and path.name != ADAPTER:
        return None
    try:
        values = read_json(path)
    except ValueError:  # others may have files of this name
        return None
    return hashlib.sha256(canonical_json(_drop_measurements(values)).encode(errors="surrogatepass")).hexdigest()


def is_measurement(name: str) -> bool:
    """Return whether a field of a JSON file is a measurement, by its name."""
    return name in MEASURED or name.endswith(MEASURED_SUFFIXES)


def _drop_measurements(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _drop_measurements(inner) for name, inner in value.items() if not is_measurement(name)}
    return [_drop_measurements(inner) for inner in value] if isinstance(value, list) else value


SHOWN_DIGITS = 12  # of a sha256 in messages


@dataclass(frozen=True)
class FileSummary:
    """One file of a folder.

    Attributes:
        records: number of records; None if it contains none.
        informational: verified like any other file, but not in the keys of results made from the folder.
        results: sha256 of the results in it without measurements, used in those keys instead of `sha256`; None if the
            whole file counts.
    """

    name: str
    file_bytes: int
    sha256: str
    records: int | None = None
    informational: bool = False
    results: str | None = None


@dataclass(frozen=True)
class Manifest:
    """What was made, from what, and what came out.

    Attributes:
        stage: the kind of folder, such as `records`.
        key: content key of the result.
        config: resolved settings that the result depends on.
        inputs: digest of each input by name.
        files: every file, except the manifest.
        counters: the job's counts, such as documents and rejected inputs by reason.
        version: version of this package.
        revision: revision of the stage; None by an earlier version of this package, whose keys covered its code.
        digest: sha256 of the other fields, which are damaged if it differs; empty if none was written.
    """

    stage: str
    key: str
    config: Mapping[str, Any]
    inputs: Mapping[str, str]
    files: tuple[FileSummary, ...]
    counters: Mapping[str, Any]
    version: str
    revision: int | None = None
    digest: str = ""


def write_manifest(
    folder: str | Path,
    stage: str,
    key: str,
    config: Mapping[str, Any],
    inputs: Mapping[str, str],
    counters: Mapping[str, Any],
    files: Sequence[FileSummary] = (),
    without: str | None = None,
    revision: int | None = None,
) -> Manifest:
    """Write the manifest of a folder whose files are complete.

    Args:
        files: summaries that are already known, wherever the files are; other files are in the folder and read for
            their digests.
        without: a folder in it that is about to be removed.
        revision: of the stage; None for what is not made by a stage.
    """
    folder = Path(folder)
    known = {summary.name: summary for summary in files}
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    found -= {MANIFEST, COSTS}
    names = [name for name in sorted(found | {*known}) if Path(name).parts[0] != without]
    summaries = []
    for name in names:
        if name in known:
            summaries.append(known[name])
            continue
        path = folder / name
        facts = path.stat().st_size, file_digest(path), None, path.name in INFORMATIONAL, digest_results(path)
        summaries.append(FileSummary(name, *facts))
    manifest = Manifest(stage, key, config, inputs, (*summaries,), counters, package_version(), revision)
    return store_manifest(folder, manifest)


def store_manifest(folder: Path, manifest: Manifest) -> Manifest:
    """Write a manifest as given, with the digest of its fields."""
    manifest = replace(manifest, digest=_digest_fields(asdict(manifest)))
    write_atomically(folder / MANIFEST, (json.dumps(asdict(manifest), indent=1, sort_keys=True) + "\n").encode())
    return manifest


def read_manifest(folder: str | Path, read: Read = read_file) -> Manifest:
    """Read the manifest of a published folder.

    Args:
        read: as for `documents.read_json`.
    Raises:
        FileNotFoundError: there is no manifest: the folder is not finished, or not one of ours.
        ValueError: it is damaged.
    """
    path = Path(folder) / MANIFEST
    if not path.is_file():
        raise FileNotFoundError(
            f"A published folder must hold {MANIFEST}. Received: {folder}, without {MANIFEST}. Build it again."
        )
    damaged = ValueError(f"A manifest must be whole. Received: {path}, damaged. Build the folder again.")
    try:
        values = read_json(path, read)
        is_whole = values.get("digest", "") in ("", _digest_fields(values))
        files = tuple(FileSummary(**file) for file in values.pop("files"))
        manifest = Manifest(files=files, **values)
        _check_types(manifest)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise damaged from None
    for summary in files:
        is_plain = "\\" not in summary.name and "\0" not in summary.name
        is_plain = is_plain and not {"", ".", ".."} & set(summary.name.split("/"))
        # Following symbolic links, the file is below the folder.
        if not is_plain or not (path.parent / summary.name).resolve().is_relative_to(path.parent.resolve()):
            raise ValueError(f"A manifest must name files of its folder. Received: {path}, with {summary.name!r}.")
    if not is_whole:
        raise damaged
    return manifest


def check_folder(
    folder: str | Path, stage: str | None = None, digests: bool = True, files: OpenedFiles | None = None
) -> Manifest:
    """Check the files of a folder against its manifest.

    Args:
        stage: the expected kind of folder; None accepts any.
        digests: also read every file and compare its sha256, not only its size.
        files: reads the files, each opened once; by default they are opened here.
    Raises:
        FileNotFoundError: the manifest or a file is missing.
        ValueError: a file has another size or content, or the folder is of another kind.
    """
    manifest = read_manifest(folder, files.read if files else read_file)
    if stage is not None and manifest.stage != stage:
        raise ValueError(f"The folder must hold {stage}. Received: {folder}, which holds {manifest.stage}.")
    for summary in manifest.files:
        check_file(Path(folder), summary, digests, files)
    return manifest


def check_file(folder: Path, summary: FileSummary, digests: bool = True, files: OpenedFiles | None = None) -> None:
    """Check one file of a folder; arguments and errors as for `check_folder`.

    A file that is still being fetched is checked by its carrier.
    """
    path = folder / summary.name
    if find_carrier(path) is not None:
        return
    if not path.is_file():
        raise FileNotFoundError(
            f"Every file of a manifest must exist. Received: {path}, missing. Build the folder again."
        )
    file_bytes = path.stat().st_size
    if file_bytes != summary.file_bytes:
        difference = f"{file_bytes:,} bytes, not {summary.file_bytes:,}"
    elif digests and (digest := files.digest(path) if files else file_digest(path)) != summary.sha256:
        difference = f"sha256 {digest[:SHOWN_DIGITS]}, not {summary.sha256[:SHOWN_DIGITS]}"
    else:
        return
    raise ValueError(
        f"A file must be as {MANIFEST} says. Received: {path}, changed or damaged: {difference}. "
        f"Build {folder} again, or copy it again from where it is whole."
    )


def is_published(folder: str | Path, key: str) -> bool:
    """Return whether a folder holds the finished result of this key, and every file has the digest of its manifest."""
    try:
        return check_folder(folder).key == key
    except (FileNotFoundError, ValueError):
        return False


def manifest_digest(manifest: Manifest) -> str:
    """Digest the content of a folder, for use as an input of the next stage, without its informational files."""
    return canonical_json(
        [(file.name, file.results or file.sha256) for file in manifest.files if not file.informational]
    )


def _digest_fields(values: Mapping[str, Any]) -> str:
    """Digest the fields of a manifest as JSON reads them back."""
    fields = {name: value for name, value in values.items() if name != "digest"}
    text = json.dumps(json.loads(json.dumps(fields)), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _check_types(manifest: Manifest) -> None:
    """Raise TypeError unless every field has its type, ValueError if a count is negative or a name occurs twice."""
    texts = [
        *(file.results for file in manifest.files if file.results is not None),
        manifest.stage,
        manifest.key,
        manifest.version,
        manifest.digest,
        *manifest.inputs,
        *manifest.inputs.values(),
    ]
    texts += [text for file in manifest.files for text in (file.name, file.sha256)]
    counts = [file.file_bytes for file in manifest.files]
    counts += [file.records for file in manifest.files if file.records is not None]
    if not (
        isinstance(manifest.config, dict)
        and isinstance(manifest.counters, dict)
        and all(isinstance(text, str) for text in texts)
        and all(type(count) is int for count in counts)  # a boolean is an int, too
        and (manifest.revision is None or type(manifest.revision) is int)
    ):
        raise TypeError
    if any(not 0 <= count < 1 << 63 for count in counts):
        raise ValueError
    if len({file.name for file in manifest.files}) < len(manifest.files):
        raise ValueError
