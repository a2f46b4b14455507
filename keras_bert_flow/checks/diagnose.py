"""Detect what a path contains, and examine it: a vocabulary, a folder of records, or a corpus (see `checks.corpus`)."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from keras_bert_flow.checks.corpus import examine_corpus
from keras_bert_flow.checks.findings import (
    Diagnosis,
    Finding,
    Verdict,
    even_histogram,
    grade,
    judge,
    percent,
    share,
)
from keras_bert_flow.checks.record_counts import FAULTS, Layout, RecordCounts, judge_records, make_layout
from keras_bert_flow.config.text import CorpusConfig
from keras_bert_flow.records.tfrecord import RECORD_SUFFIX, TFRecordFile, find_extra_files
from keras_bert_flow.results.artifacts import file_digest
from keras_bert_flow.results.manifest import MANIFEST, FileSummary, Manifest, read_manifest
from keras_bert_flow.results.publishing import verify
from keras_bert_flow.text.corpus.lines import suggest_conversion
from keras_bert_flow.text.tokenizers.files import find_case, find_tokenizer_file, read_tokenizer_file
from keras_bert_flow.text.tokenizers.normalization import normalize_text
from keras_bert_flow.text.tokenizers.settings import FAST_TOKENIZER, Said, read_said
from keras_bert_flow.text.tokenizers.wordpiece import PLAIN, WordRules
from keras_bert_flow.text.vocabulary import (
    CONTINUATION,
    MAX_WORD_CHARACTERS,
    SPECIAL_PIECES,
    VOCABULARY_FILE,
    read_vocabulary,
    read_vocabulary_bytes,
)

SAMPLE = 100_000  # records
_LOOKED_AT_BYTES = 65536  # the special pieces of every published vocabulary are in the first thousand
_KINDS = "a corpus, a vocabulary or a folder of records"


def diagnose(
    path: str,
    corpus: CorpusConfig,
    vocabulary_file: str | Path | None = None,
    cased: bool | None = None,
    sample: int = SAMPLE,
    advance: Callable[[float], None] | None = None,
) -> Diagnosis:
    """Examine a corpus (file, folder or glob), a vocabulary (file or folder) or a folder of records.

    Args:
        path: where it is.
        corpus: how the lines of a corpus are read.
        vocabulary_file: for the tokens of a corpus, or for records whose folder has none.
        cased: the vocabulary keeps case. None: for a vocabulary as in its folder, or else guessed; otherwise uncased.
        sample: most records to read.
        advance: called now and then with the number of further bytes read from a corpus.
    Raises:
        FileNotFoundError: the path does not exist.
        ValueError: it is none of these, the given vocabulary is unusable, or a corpus or vocabulary differs from the
            manifest of its folder.
    """
    kind, place = find_kind(path)
    if kind == "records":
        return examine_records(place, vocabulary_file, sample)
    verify(place, *([vocabulary_file] if vocabulary_file else []))
    if kind == "vocabulary":
        try:
            said = read_said(Path(place), read_vocabulary(place))  # by the files beside it
        except ValueError:  # one is damaged
            said = Said()
        return examine_vocabulary(place, said.cased if cased is None else cased, said.rules)
    tokenizer = None
    if vocabulary_file:
        tokenizer = read_tokenizer_file(vocabulary_file, find_case(vocabulary_file, cased))
    return examine_corpus(place, corpus, bool(cased), tokenizer, advance)


def find_kind(path: str) -> tuple[str, str]:
    """Return (`corpus`, `vocabulary` or `records`, the file, folder or glob to examine).

    Raises:
        ValueError: the folder or file is none of these.
    """
    place = Path(path)
    if place.is_dir():
        return _find_kind_of_folder(place)
    if path.endswith(RECORD_SUFFIX) and place.is_file():
        raise ValueError(f"Records are examined by folder. Received: {path}, a file. Give {place.parent}.")
    if not place.is_file():
        return "corpus", path
    if place.name.endswith(VOCABULARY_FILE):
        return "vocabulary", path
    with open(place, "rb") as file:
        lines = {line.rstrip(b"\r") for line in file.read(_LOOKED_AT_BYTES).split(b"\n")}
    has_special_pieces = sum(piece.encode() in lines for piece in SPECIAL_PIECES) >= 3  # each on a line of its own
    return "vocabulary" if has_special_pieces else "corpus", path


def _find_kind_of_folder(folder: Path) -> tuple[str, str]:
    stage = None
    if (folder / MANIFEST).is_file():
        try:
            stage = read_manifest(folder).stage
        except ValueError:  # damaged; the examination will say so
            stage = "records" if any(folder.glob(f"*{RECORD_SUFFIX}")) else None
    if stage == "records" or any(folder.glob(f"*{RECORD_SUFFIX}")):
        return "records", str(folder)
    if stage == "corpus":
        return "corpus", str(folder)
    if (folder / VOCABULARY_FILE).is_file():
        return "vocabulary", str(folder / VOCABULARY_FILE)
    if (folder / FAST_TOKENIZER).is_file():
        raise ValueError(
            f"The doctor examines {_KINDS}. Received: {folder}, a tokenizer without vocab.txt. Give it as "
            f"`--vocab {folder / FAST_TOKENIZER}` with records or a corpus."
        )
    if stage is not None:
        raise ValueError(f"The doctor examines {_KINDS}. Received: {folder}, which holds {stage}.")
    return "corpus", str(folder)


# A vocabulary file, even one that `read_vocabulary` rejects: all of its faults at once.

CASED_SHARE = 0.01  # of pieces with capitals or accents: a vocabulary with more is taken to be cased
EXAMPLES = 3
_UNUSED = re.compile(r"\[unused\d+\]")


def read_pieces(path: str | Path) -> tuple[list[str], bool]:
    """Return the lines of a file, unchecked, and whether they are UTF-8.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is too large for a vocabulary.
    """
    data = read_vocabulary_bytes(path)
    try:
        text, is_utf8 = data.decode("utf-8-sig"), True
    except UnicodeDecodeError:
        text, is_utf8 = data.decode("utf-8-sig", errors="replace"), False
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else [], is_utf8


def examine_vocabulary(path: str | Path, cased: bool | None = None, rules: WordRules = PLAIN) -> Diagnosis:
    """Examine the pieces of a `vocab.txt`.

    Args:
        path: the file.
        cased: the tokenizer keeps case; None guesses it from the pieces.
        rules: what else the tokenizer does.
    Raises:
        FileNotFoundError: there is no such file.
    """
    pieces, is_utf8 = read_pieces(path)
    ids = {piece: number for number, piece in reversed(list(enumerate(pieces)))}
    ordinary = [piece for piece in ids if piece and piece not in SPECIAL_PIECES and not _UNUSED.fullmatch(piece)]
    letters_of = {piece: piece.removeprefix(CONTINUATION) or piece for piece in ordinary}  # "##" itself is two letters
    folded = [  # which a cased tokenizer leaves, and an uncased one changes
        piece
        for piece, letters in letters_of.items()
        if normalize_text(letters, True) != normalize_text(letters, False, rules.strip_accents)
    ]
    was_told = cased is not None
    if cased is None:
        cased = share(len(folded), len(ordinary)) > CASED_SHARE
    unreachable = [piece for piece in ordinary if not is_reachable(piece, cased, rules)]
    characters = {character for letters in letters_of.values() for character in letters}
    lengths = Counter(map(len, letters_of.values()))
    alone = {character for character in characters if character in ids or CONTINUATION + character in ids}
    numbers: dict[str, Any] = {
        "pieces": len(pieces),
        "cased": cased,
        "special_ids": {piece: ids.get(piece) for piece in SPECIAL_PIECES},
        "unused_pieces": sum(bool(_UNUSED.fullmatch(piece)) for piece in ids),
        "empty_lines": pieces.count(""),
        "repeated_pieces": sum(count - 1 for piece, count in Counter(pieces).items() if piece),
        "continuation_pieces": sum(piece.startswith(CONTINUATION) for piece in ordinary),
        "characters": len(characters),
        "characters_never_alone": len(characters - alone),
        "folded_pieces": len(folded),
        "unreachable_pieces": len(unreachable),
        "characters_per_piece": [[length, length, lengths[length]] for length in sorted(lengths)],
    }
    findings = (
        judge("encoding", is_utf8, "UTF-8" if is_utf8 else "not UTF-8", suggest_conversion(b"")),
        judge("size", bool(ordinary), f"{len(pieces):,} pieces", "Learn one with `kbf vocab`."),
        _judge_special(numbers["special_ids"]),
        _judge_lines(pieces),
        *_judge_coverage(numbers["continuation_pieces"], len(ordinary), len(characters), sorted(characters - alone)),
        *_judge_use(folded, unreachable, len(ordinary), cased, was_told),
    )
    return Diagnosis(
        str(path), "vocabulary", findings, numbers, {"characters_per_piece": "characters of a piece, ## aside"}
    )


def is_reachable(piece: str, cased: bool, rules: WordRules = PLAIN) -> bool:
    """Return whether normalised text can contain a piece; if not, no text is ever encoded with it.

    Pieces that a longer piece always takes the place of are not detected.
    """
    letters = piece.removeprefix(CONTINUATION) or piece
    # The letter before a continuation stands for the start of a word: a mark or a Han character would be separated.
    word = "a" + letters if piece.startswith(CONTINUATION) and letters else piece
    words = normalize_text(word, cased, rules.strip_accents, rules.split_han).split()
    return len(word) <= MAX_WORD_CHARACTERS and words == [word]


def _judge_special(special_ids: dict[str, int | None]) -> Finding:
    missing = [piece for piece, number in special_ids.items() if number is None]
    value = ", ".join(f"{piece} {number}" for piece, number in special_ids.items() if number is not None)
    if missing:
        remedy = "Put them in place of [unused] lines, or at the top before training."
        return judge("special pieces", False, f"without {' '.join(missing)}", remedy)
    is_padding_0 = special_ids["[PAD]"] == 0
    remedy = "Move [PAD] to the first line before training: records are padded with zeros."
    return judge("special pieces", "ok" if is_padding_0 else "warning", f"ids {value}", remedy)


def _judge_lines(pieces: Sequence[str]) -> Finding:
    places: dict[str, list[int]] = {}
    for number, piece in enumerate(pieces, start=1):
        places.setdefault(piece, []).append(number)
    empty = places.pop("", [])
    repeated = {piece: lines for piece, lines in places.items() if len(lines) > 1}
    faults = []
    if empty:
        faults.append(f"{len(empty):,} empty, such as line {empty[0]}")
    if repeated:
        shown = [f"{piece!r} on lines {', '.join(map(str, lines[:EXAMPLES]))}" for piece, lines in repeated.items()]
        faults.append(f"{len(repeated):,} pieces twice or more: {'; '.join(shown[:EXAMPLES])}")
    return judge(
        "lines",
        not faults,
        "; ".join(faults) or "one piece each, none twice",
        "Give these lines a name of their own, such as [unused0]: removing them moves every id below.",
    )


def _judge_coverage(continuations: int, pieces: int, characters: int, never_alone: Sequence[str]) -> list[Finding]:
    """Judge whether words that are no pieces can be encoded: by pieces within words, and by their characters."""
    shown = f"{characters:,} different"
    if never_alone:
        shown += f", {len(never_alone):,} of them only inside longer pieces, such as {' '.join(never_alone[:EXAMPLES])}"
    return [
        judge(
            "continuations",
            "ok" if continuations else "warning",
            f"{percent(share(continuations, pieces))} of pieces begin with {CONTINUATION}",
            f"Is it a WordPiece vocabulary? Without {CONTINUATION} pieces every word not in it is unknown.",
        ),
        judge(
            "characters",
            grade(share(len(never_alone), characters), 0.05),
            shown,
            "Add each as a piece, alone or behind ##: a word with one of them is unknown as a whole.",
        ),
    ]


def _judge_use(
    folded: Sequence[str], unreachable: Sequence[str], pieces: int, cased: bool, was_told: bool
) -> list[Finding]:
    """Judge whether the case fits the pieces, and how many of them no text is encoded with."""
    name = ("cased" if cased else "uncased") + ("" if was_told else ", a guess")
    value = f"{name}; {len(folded):,} pieces with capitals or accents"
    if not cased and folded:
        value += f", such as {' '.join(folded[:EXAMPLES])}"
    remedy = (
        "Is it an uncased one? Then give --uncased, here and in training."
        if cased
        else "Give --cased if it is a cased one; else lower-case the text that it is learnt from."
    )
    wasted = share(len(unreachable), pieces)
    shown = f", such as {' '.join(map(ascii, unreachable[:EXAMPLES]))}" if unreachable else ""
    return [
        judge("case", "ok" if cased == bool(folded) else "warning", value, remedy),
        judge(
            "unreachable",
            grade(wasted, 0.05),
            f"{len(unreachable):,} pieces ({percent(wasted)}) that no text is encoded with{shown}",
            "Harmless, but each is a row of weights that never learns; `kbf vocab` learns none of these.",
        ),
    ]


# A folder of pre-training records: its files against the manifest, and a sample of their contents.

_RESTORE = "Restore the folder from where it was made, or build it again with `kbf records`."
_File = TypeVar("_File", bound=Sized)


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
    manifest: Manifest | None = None
    try:
        manifest = read_manifest(folder)
        said = f"of {manifest.stage}, key {manifest.key}, version {manifest.version}"
    except (FileNotFoundError, ValueError) as error:
        said = str(error)
    files, faults = [], []
    for path in sorted(folder.glob(f"*{RECORD_SUFFIX}")):
        try:
            files.append(TFRecordFile(path))
        except (ValueError, OSError) as error:
            faults.append(str(error))
    records = sum(map(len, files))
    train, held_out = (
        sum(len(file) for file in files if file.path.name.startswith(part)) for part in ("train-", "held_out-")
    )
    findings = [
        judge("manifest", manifest is not None, said, _RESTORE),
        _judge_files(folder, manifest, files, faults),
        *_judge_amounts(manifest, records, train, held_out),
    ]
    numbers: dict[str, Any] = {
        "files": len(files),
        "file_bytes": sum(path.stat().st_size for path in folder.iterdir() if path.is_file()),
        "records": records,
        "records_train": train,
        "records_held_out": held_out,
    }
    layout, vocabulary_finding = _find_layout(folder, manifest, vocabulary_file)
    findings.append(vocabulary_finding)
    histograms: dict[str, str] = {}
    if layout is not None and records:
        found, of_sample = _examine_sample(files, layout, manifest.counters if manifest else {}, sample)
        findings += found
        numbers |= of_sample
        histograms = {"tokens_per_record": "tokens of a record"}
    return Diagnosis(str(folder), "records", tuple(findings), numbers, histograms)


def walk_sample(files: Sequence[_File], sample: int) -> Iterator[tuple[_File, int]]:
    """Yield the files and positions of at most `sample` of all records, in order and evenly spread."""
    total, start = sum(map(len, files)), 0
    chosen = np.arange(min(sample, total)) * total // max(1, min(sample, total))
    for file in files:
        here = chosen[(chosen >= start) & (chosen < start + len(file))] - start
        yield from ((file, int(position)) for position in here)
        start += len(file)


def _judge_files(
    folder: Path, manifest: Manifest | None, files: Sequence[TFRecordFile], faults: Sequence[str]
) -> Finding:
    """Compare every file with the manifest, including sha256, and name all that differ."""
    if manifest is not None:
        counted = {file.path.name: len(file) for file in files}
        faults = [fault for file in manifest.files if (fault := _find_fault(folder, file, counted.get(file.name)))]
        faults = [*faults, *(f"{name} is in no manifest" for name in find_extra_files(folder, manifest))]
    if faults:
        return judge("files", False, "; ".join(faults), _RESTORE)
    against = f"{len(manifest.files):,}, each as the manifest says" if manifest else f"{len(files):,} of records"
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


def _judge_amounts(manifest: Manifest | None, records: int, train: int, held_out: int) -> list[Finding]:
    if manifest is None:  # files of other tools have other names
        return [judge("records", records > 0, f"{records:,}", "Give the corpus more documents.")]
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
    path = Path(vocabulary_file or own)
    pieces: Sequence[str]
    special_pieces: Sequence[str] = SPECIAL_PIECES
    try:
        if path.suffix == ".json":
            tokenizer = read_tokenizer_file(path)
            pieces = tokenizer.pieces
            special_pieces = [pieces[number] for number in tokenizer.special_ids]
        else:
            pieces, _ = read_pieces(path)  # its lines are not checked
        layout = make_layout(manifest.config if manifest else {}, pieces, special_pieces)
    except ValueError as error:
        if vocabulary_file is not None:
            raise
        return None, judge("vocabulary", False, str(error), _RESTORE)
    value = f"{len(pieces):,} pieces; the records were made with {layout.vocabulary_size:,}"
    return layout, judge("vocabulary", len(pieces) == layout.vocabulary_size, value, _RESTORE)


def _examine_sample(
    files: Sequence[TFRecordFile], layout: Layout, counters: Mapping[str, Any], sample: int
) -> tuple[list[Finding], dict[str, Any]]:
    """Return the findings and the numbers of at most `sample` records; `counters` are those of the manifest."""
    counts, records = RecordCounts(layout), sum(map(len, files))
    for file, position in walk_sample(files, sample):
        place = f"record {position} of {file.path.name}"
        try:
            counts.add(file[position], place)
        except ValueError:
            counts.note("checksums", place)
    counts.flush()
    totals, damaged = counts.totals, counts.faults["checksums"]
    read = totals["records"] + damaged
    value = f"all {records:,} read" if read == records else f"{read:,} of {records:,} read, evenly spread"
    if damaged:
        value += f", {damaged:,} of them damaged, first {counts.first_fault['checksums']}"
    findings = [judge("checksums", not damaged, value, _RESTORE)]
    findings += judge_records(counts, counters, is_whole=sample >= records)
    return findings, {
        "objective": counts.layout.objective,
        "mask_unit": counts.layout.mask_unit,
        "records_read": read,
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
