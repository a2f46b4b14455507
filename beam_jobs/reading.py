"""Read a corpus as a collection of batches of documents; a worker reads whole files, one document at a time."""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import apache_beam as beam
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.windowed_value import WindowedValue

from beam_jobs.exchange.exchange import Exchange
from beam_jobs.results import COUNTERS, CountingDoFn
from keras_bert_flow.config.corpus import CorpusConfig
from keras_bert_flow.job_progress import DOCUMENTS, MB, JobPart, expect, note
from keras_bert_flow.text.corpus.documents import ReadingRule, find_fault, read_texts
from keras_bert_flow.text.corpus.inputs import SUFFIXES, find_ignored, find_inputs, find_left_out
from keras_bert_flow.text.corpus.rejected import (
    NAMED_FILES,
    check_rejected,
    describe_rejected,
    rejected_bytes,
    rejected_share,
)
from keras_bert_flow.text.corpus.storage import LOCAL, Storage

READING = JobPart("reading", MB)  # the first part of a job for `keras_bert_flow.job_progress`
BATCH_CHARACTERS = 64_000  # per element: Beam's overhead is some 20 us each, the time to encode a short document
Texts = list[list[str]]  # the lines of each document of a batch
REJECTED_FILE = "rejected_inputs.txt"
# Prefixes of the counters that report why a file was left out, and how many bytes of a file were rejected for which
# reason.
_LEFT_OUT, _REJECTED_IN = "left out: ", "rejected in: "
_SEPARATOR = "\t"  # between a reason and a path


class CorpusCollections(NamedTuple):
    """The outputs of `ReadCorpus`.

    Attributes:
        texts: every document of the corpus, as batches of their lines, distributed over the workers.
        counters: (name, number) pairs.
    """

    texts: beam.PCollection
    counters: beam.PCollection


class ReadCorpus(beam.PTransform):
    """Read every document of a corpus.

    Returns CorpusCollections. A document and its id do not depend on the number and order of bundles or the names of
    files. After reading, the text is redistributed over the workers, so that the documents of one large file keep all
    of them busy. This happens once the whole corpus has been read, and not at all if too much of it was rejected:
    `tell_rejected` then raises the error, since workers would print theirs with a traceback.

    Args:
        corpus: location of the text, and how its lines are read.
        exchange: moves the documents.
        storage: accesses the files.
    """

    def __init__(self, corpus: CorpusConfig, exchange: Exchange, storage: Storage = LOCAL):
        super().__init__()
        self._paths = find_inputs(corpus.input, storage)
        self._exchange = exchange
        rule = ReadingRule(
            text_field=corpus.text_field,
            max_line_bytes=corpus.max_line_bytes,
            strict=corpus.strict,
        )
        self._reader = ReadDocuments(rule, storage, corpus.skip_bad_inputs)
        self._max_rejected_share = corpus.max_rejected_share

    def expand(self, pipeline):  # returns two collections, for which Beam has no type hint
        read = (
            pipeline
            | "ListFiles" >> beam.Create(self._paths)
            | "SpreadFiles" >> beam.Reshuffle()
            | "ReadDocuments" >> beam.ParDo(self._reader).with_outputs(COUNTERS, main="texts")
        )
        counters = read.counters | "AddCounters" >> beam.CombinePerKey(sum)
        checked = (
            counters
            | "ListCounters" >> beam.combiners.ToList()
            | "CheckRejected" >> beam.Map(is_acceptable, self._max_rejected_share)
        )
        texts = read.texts | "SpreadDocuments" >> self._exchange.spread("documents", checked)
        return CorpusCollections(texts, counters)


class ReadDocuments(CountingDoFn):
    """Read all documents of a file, or none of them. Emits batches of their lines.

    A file that cannot be read to its end fails the job. If such files are to be skipped, each is first read to its end
    without using it, so that a file damaged half-way leaves no documents. If a file fails in spite of that, the bundle
    fails with all its output, and Beam retries it.
    """

    def __init__(self, rule: ReadingRule, storage: Storage, skip_bad_inputs: bool):
        self._rule, self._storage, self._skip = rule, storage, skip_bad_inputs

    def start_bundle(self) -> None:
        super().start_bundle()
        self._batch: Texts = []
        self._characters = self._told_bytes = 0

    def process(self, path: str) -> Iterator[Texts]:
        counts: Counter = Counter({"files_read": 1})
        fault = find_fault(path, self._rule, self._storage) if self._skip else None
        if fault:
            counts[f"files_rejected_{fault.reason}"] += 1
            counts["bytes_read"] = counts[f"bytes_rejected_{fault.reason}"] = fault.known_bytes
            counts[_LEFT_OUT + fault.message] += 1
        else:
            counts["files_used"] += 1
            self._told_bytes = 0
            for lines in read_texts(path, self._rule, counts, self._storage):
                self._batch.append(lines)
                self._characters += sum(map(len, lines))
                if self._characters >= BATCH_CHARACTERS:
                    self._tell(counts)
                    yield self._take_batch()
            self._tell(counts)
        for reason, rejected in rejected_bytes(counts).items():
            counts[f"{_REJECTED_IN}{reason}{_SEPARATOR}{path}"] = rejected
        self.counts.update(counts)

    def finish_bundle(self) -> Iterator[WindowedValue | beam.pvalue.TaggedOutput]:
        if self._batch:
            yield GlobalWindows.windowed_value(self._take_batch())
        yield from super().finish_bundle()

    def _tell(self, counts: Mapping[str, int]) -> None:
        note(READING, (counts["bytes_read"] - self._told_bytes) / 1e6)
        self._told_bytes = counts["bytes_read"]

    def _take_batch(self) -> Texts:
        expect(DOCUMENTS, len(self._batch))
        batch, self._batch, self._characters = self._batch, [], 0
        return batch


def is_acceptable(counters: Sequence[tuple[str, int]], max_share: float) -> bool:
    """Return whether at most `max_share` of the bytes of a corpus were rejected."""
    return rejected_share(dict(counters)) <= max_share


def tell_rejected(counters: dict[str, int], folder: Path, max_share: float) -> dict[str, int]:
    """Log what was rejected and where; skipped files are also listed in a file in the folder.

    Returns:
        The counters of what was read.
    Raises:
        ValueError: more than `max_share` of the bytes were rejected.
    """
    files = _rejecting_files(counters)
    check_rejected(counters, max_share, files)
    log = logging.getLogger("keras_bert_flow")
    messages = sorted(name.removeprefix(_LEFT_OUT) for name in counters if name.startswith(_LEFT_OUT))
    if messages:
        (folder / REJECTED_FILE).write_text("".join(f"{message}\n" for message in messages), encoding="utf-8")
        log.warning(
            "%d of %d corpus files were left out; %s names them. The first: %s",
            len(messages),
            counters["files_read"],
            REJECTED_FILE,
            messages[0],
        )
    if text := describe_rejected(counters, files):
        log.warning("%s.", text)
    if empty := counters.get("documents_without_tokens"):
        log.warning(
            "%s of %s documents hold no token, only controls, format characters or accents, and were left out.",
            f"{empty:,}",
            f"{counters['documents']:,}",
        )
    return {name: number for name, number in counters.items() if not name.startswith((_LEFT_OUT, _REJECTED_IN))}


def tell_ignored(corpus: CorpusConfig, storage: Storage) -> None:
    """Log which files in the folders of a corpus were not read, and which results there were left out."""
    if left_out := find_left_out(corpus.input, storage):
        logging.getLogger("keras_bert_flow").warning(
            "Results of this program are no text, and were left out: %s.", name_inputs(left_out)
        )
    if ignored := find_ignored(corpus.input, storage):
        logging.getLogger("keras_bert_flow").warning(
            "Not read in the folders of the corpus, with other endings than %s: %s.",
            ", ".join(SUFFIXES),
            name_inputs(ignored),
        )


def name_inputs(paths: Sequence[str]) -> str:
    """Name the first few inputs of a corpus in a message, and count the others."""
    more = f" and {len(paths) - NAMED_FILES:,} more" if len(paths) > NAMED_FILES else ""
    return ", ".join(paths[:NAMED_FILES]) + more


def _rejecting_files(counters: Mapping[str, int]) -> list[tuple[str, str, int]]:
    """Return (reason, path, rejected bytes) of each file with rejected text."""
    found = []
    for name, number in counters.items():
        if name.startswith(_REJECTED_IN):
            reason, path = name.removeprefix(_REJECTED_IN).split(_SEPARATOR, 1)
            found.append((reason, path, number))
    return found
