"""Examine a folder of pre-training records: its files against the manifest, and a sample of their contents."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from keras_bert_flow.checks.findings import Diagnosis, Finding, Verdict, even_histogram, judge, share
from keras_bert_flow.checks.record_counts import FAULTS, Layout, RecordCounts, judge_records, make_layout
from keras_bert_flow.checks.vocabulary import read_pieces
from keras_bert_flow.records.tfrecord import RECORD_SUFFIX, TFRecordFile, find_extra_files
from keras_bert_flow.results.artifacts import file_digest
from keras_bert_flow.results.manifest import FileSummary, Manifest, read_manifest
from keras_bert_flow.text.tokenizers.files import find_tokenizer_file, read_tokenizer_file
from keras_bert_flow.text.vocabulary import SPECIAL_PIECES

SAMPLE = 100_000
HISTOGRAMS = {"tokens_per_record": "tokens of a record"}
_RESTORE = "Restore the folder from where it was made, or build it again with `kbf records`."


@dataclass(frozen=True)
class RecordFiles:
    """The record files of a folder that can be opened, and the faults of the others."""

    files: tuple[TFRecordFile, ...]
    faults: tuple[str, ...]

    def records_of(self, part: str) -> int:
        return sum(len(file) for file in self.files if file.path.name.startswith(f"{part}-"))

    def __len__(self) -> int:
        return sum(len(file) for file in self.files)


def examine_records(folder: str | Path, vocabulary_file: str | Path | None = None, sample: int = SAMPLE) -> Diagnosis:
    """Check every file, and read `sample` records spread evenly over them.

    Args:
        folder: folder made by `kbf records`, or TFRecord files of the same features made by other tools.
        vocabulary_file: the vocab.txt, or tokenizer.json, of the records, if the folder has none.
        sample: most records to read; their order in a file is already random.
    Raises:
        FileNotFoundError: the given vocabulary is missing.
        ValueError: the given vocabulary lacks a special piece.
    """
    folder = Path(folder)
    manifest, manifest_finding = _read_manifest(folder)
    opened = _open_files(folder)
    findings = [
        manifest_finding,
        _judge_files(folder, manifest, opened),
        *_judge_amounts(manifest, opened),
    ]
    numbers = {
        "files": len(opened.files),
        "file_bytes": sum(path.stat().st_size for path in folder.iterdir() if path.is_file()),
        "records": len(opened),
        "records_train": opened.records_of("train"),
        "records_held_out": opened.records_of("held_out"),
    }
    layout, vocabulary_finding = _find_layout(folder, manifest, vocabulary_file)
    findings.append(vocabulary_finding)
    if layout is not None and len(opened):
        counts, damaged = _count(opened, layout, sample)
        findings.append(_judge_sample(counts, len(opened), damaged))
        findings += judge_records(counts, manifest.counters if manifest else {}, is_whole=sample >= len(opened))
        numbers |= _numbers(counts, damaged)
    histograms = HISTOGRAMS if "tokens_per_record" in numbers else {}
    return Diagnosis(str(folder), "records", tuple(findings), numbers, histograms)


def choose_sample(total: int, sample: int) -> np.ndarray:
    """Return the indices of at most `sample` of `total` records, ascending and evenly spread."""
    return np.arange(min(sample, total)) * total // max(1, min(sample, total))


def _read_manifest(folder: Path) -> tuple[Manifest | None, Finding]:
    try:
        manifest = read_manifest(folder)
    except (FileNotFoundError, ValueError) as error:
        return None, judge("manifest", False, str(error), _RESTORE)
    value = f"of {manifest.stage}, key {manifest.key}, version {manifest.version}"
    return manifest, judge("manifest", True, value, "")


def _open_files(folder: Path) -> RecordFiles:
    files, faults = [], []
    for path in sorted(folder.glob(f"*{RECORD_SUFFIX}")):
        try:
            files.append(TFRecordFile(path))
        except (ValueError, OSError) as error:
            faults.append(str(error))
    return RecordFiles(tuple(files), tuple(faults))


def _judge_files(folder: Path, manifest: Manifest | None, opened: RecordFiles) -> Finding:
    """Compare every file with the manifest, including sha256, and name all that differ."""
    faults = list(opened.faults)
    if manifest is not None:
        counted = {file.path.name: len(file) for file in opened.files}
        faults = [fault for file in manifest.files if (fault := _find_fault(folder, file, counted.get(file.name)))]
        faults += [f"{name} is in no manifest" for name in find_extra_files(folder, manifest)]
    if faults:
        return judge("files", False, "; ".join(faults), _RESTORE)
    against = f"{len(manifest.files):,}, each as the manifest says" if manifest else f"{len(opened.files):,} of records"
    return judge("files", True, against, "")


def _find_fault(folder: Path, summary: FileSummary, records: int | None) -> str | None:
    path = folder / summary.name
    if not path.is_file():
        return f"{summary.name} is missing"
    if path.stat().st_size != summary.file_bytes:
        return f"{summary.name} has {path.stat().st_size:,} bytes, not {summary.file_bytes:,}"
    if file_digest(path) != summary.sha256:
        return f"{summary.name} has other bytes than it was made with"
    if None not in (records, summary.records) and records != summary.records:
        return f"{summary.name} has {records:,} records, not {summary.records:,}"
    return None


def _judge_amounts(manifest: Manifest | None, opened: RecordFiles) -> list[Finding]:
    train, held_out = opened.records_of("train"), opened.records_of("held_out")
    if manifest is None:  # files of other tools have other names
        return [judge("records", len(opened) > 0, f"{len(opened):,}", "Give the corpus more documents.")]
    held_out_verdict: Verdict = "ok" if held_out else "warning"
    return [
        judge("records", train > 0, f"{train:,} to train on", "Give the corpus more documents."),
        judge(
            "held-out records",
            held_out_verdict,
            f"{held_out:,} to evaluate with",
            "Give more documents, or raise records.held_out_fraction: without them no run can be judged.",
        ),
    ]


def _find_layout(
    folder: Path, manifest: Manifest | None, vocabulary_file: str | Path | None
) -> tuple[Layout | None, Finding]:
    own = find_tokenizer_file(folder)
    if vocabulary_file is None and not own.is_file():
        remedy = "Give the vocabulary that the records were made with: --vocab FILE. Nothing below was looked at."
        return None, judge("vocabulary", False, f"{own} is missing", remedy)
    config = manifest.config if manifest else {}
    try:
        pieces, special_pieces = _read_vocabulary(Path(vocabulary_file or own))
        layout = make_layout(config, pieces, special_pieces)
    except ValueError as error:
        if vocabulary_file is not None:
            raise
        return None, judge("vocabulary", False, str(error), _RESTORE)
    value = f"{len(pieces):,} pieces; the records were made with {layout.vocabulary_size:,}"
    return layout, judge("vocabulary", len(pieces) == layout.vocabulary_size, value, _RESTORE)


def _read_vocabulary(path: Path) -> tuple[Sequence[str], Sequence[str]]:
    """Return all pieces, and the special ones; the lines of a `vocab.txt` are not checked."""
    if path.suffix != ".json":
        return read_pieces(path)[0], SPECIAL_PIECES
    tokenizer = read_tokenizer_file(path)
    return tokenizer.pieces, [tokenizer.pieces[number] for number in tokenizer.special_ids]


def _count(opened: RecordFiles, layout: Layout, sample: int) -> tuple[RecordCounts, int]:
    counts, damaged = RecordCounts(layout), 0
    for file, position in _walk(opened.files, choose_sample(len(opened), sample)):
        try:
            counts.add(file[position], f"record {position} of {file.path.name}")
        except ValueError:
            damaged += 1
            counts.first_fault.setdefault("checksums", f"record {position} of {file.path.name}")
    counts.flush()
    return counts, damaged


def _walk(files: Sequence[TFRecordFile], chosen: np.ndarray) -> Iterator[tuple[TFRecordFile, int]]:
    start = 0
    for file in files:
        here = chosen[(chosen >= start) & (chosen < start + len(file))] - start
        yield from ((file, int(position)) for position in here)
        start += len(file)


def _judge_sample(counts: RecordCounts, records: int, damaged: int) -> Finding:
    read = counts.totals["records"] + damaged
    value = f"all {records:,} read" if read == records else f"{read:,} of {records:,} read, evenly spread"
    if damaged:
        value += f", {damaged:,} of them damaged, first {counts.first_fault['checksums']}"
    return judge("checksums", not damaged, value, _RESTORE)


def _numbers(counts: RecordCounts, damaged: int) -> dict:
    totals = counts.totals
    return {
        "objective": counts.layout.objective,
        "mask_unit": counts.layout.mask_unit,
        "records_read": totals["records"] + damaged,
        "records_damaged": damaged,
        "records_faulty": {fault: counts.faults[fault] for fault in FAULTS},
        "tokens": totals["tokens"],
        "unknown_tokens": totals["unknown_tokens"],
        "padding_share": 1 - share(totals["tokens"], totals["places"]) if totals["places"] else 0.0,
        "positive_labels": totals["positive_labels"],
        "masked_tokens": totals["masked_tokens"],
        "masked_tokens_wanted": totals["wanted_predictions"] if counts.layout.masked_fraction is not None else None,
        "hidden_tokens": totals["hidden"],
        "kept_tokens": totals["kept"],
        "replaced_tokens": totals["replaced"],
        "ids_out_of_range": totals["ids_out_of_range"],
        "repeated_record_share": counts.repeats.repeated_share,
        "tokens_per_record": even_histogram(counts.lengths),
    }
