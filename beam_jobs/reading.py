"""Read a corpus as batches of documents, one document at a time, and return small results of a pipeline."""

import json
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.windowed_value import WindowedValue

from beam_jobs.exchange import Exchange
from beam_jobs.storage import new_place, open_bytes, put, remove
from keras_bert_flow.config.text import CorpusConfig
from keras_bert_flow.console.job_progress import DOCUMENTS, MB, JobPart, expect, note
from keras_bert_flow.text.corpus.documents import ReadingRule, find_fault, read_texts
from keras_bert_flow.text.corpus.inputs import (
    LOCAL,
    SUFFIXES,
    Storage,
    find_ignored,
    find_inputs,
    find_left_out,
    is_remote,
)
from keras_bert_flow.text.corpus.lines import (
    NAMED_FILES,
    check_rejected,
    describe_rejected,
    rejected_bytes,
    rejected_share,
)

# Return small results of a pipeline as one file of JSON lines, the pipeline's only sink.
#
# Beam's own metrics count a retried bundle twice, and not every runner has them; counters summed as data are exact.

COUNTERS = "counters"  # tag of the outputs with (name, number) pairs
_FILE = "results"  # lines of JSON


class WriteResults(beam.PTransform):
    """Sum the counters, and write them and the given results to a folder.

    Args:
        folder: the folder to pass to `read_results`; every worker must reach it.
    """

    def __init__(self, folder: str):
        super().__init__()
        self._folder = folder

    def expand(self, inputs):  # a dict of collections, for which Beam has no type hint
        results = inputs["results"] | "TagResults" >> beam.Map(lambda result: json.dumps(["result", result]))
        counters = (
            inputs[COUNTERS]
            | "SumCounters" >> beam.CombinePerKey(sum)
            | "TagCounters" >> beam.Map(lambda counter: json.dumps(["counter", counter]))
        )
        return (
            (results, counters)
            | "FlattenResults" >> beam.Flatten()
            | "ListResults" >> beam.combiners.ToList()
            | "WriteResults" >> beam.Map(write_lines, self._folder)
        )


def write_lines(lines: Sequence[str], folder: str) -> None:
    """Write the file of results. A retry replaces it."""
    with new_place(folder) as (local, place):
        (local / _FILE).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    put({f"{place}/{_FILE}": f"{folder}/{_FILE}"})


def read_results(folder: str) -> tuple[Sequence[Any], dict[str, int]]:
    """Read and remove the file that the pipeline wrote, and return (results, counters by name)."""
    path = f"{folder}/{_FILE}"
    results, counters = [], {}
    with open_bytes(path) as file:
        for kind, value in map(json.loads, file.read().decode().splitlines()):
            if kind == "result":
                results.append(value)
            else:
                counters[value[0]] = value[1]
    if is_remote(path):
        remove(folder, [path])
    else:
        Path(path).unlink()
    return results, dict(sorted(counters.items()))


class CountingDoFn(beam.DoFn):
    """DoFn with counters `self.counts`, whose sums are emitted at the end of a bundle, besides its main output.

    Counts emitted one by one would take about 1 kB of the runner's memory per element. A subclass that overrides
    `start_bundle` or `finish_bundle` must call the one here.
    """

    def start_bundle(self) -> None:
        self.counts: Counter = Counter()

    def finish_bundle(self) -> Iterator[beam.pvalue.TaggedOutput]:
        for name, number in self.counts.items():
            yield beam.pvalue.TaggedOutput(COUNTERS, GlobalWindows.windowed_value((name, int(number))))


READING = JobPart("reading", MB)  # the first part of a job for `keras_bert_flow.console.job_progress`
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
        self._max_share = corpus.max_rejected_share

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
            | "CheckRejected" >> beam.Map(lambda found, most: rejected_share(dict(found)) <= most, self._max_share)
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


def tell_rejected(counters: dict[str, int], folder: Path, max_share: float) -> dict[str, int]:
    """Log what was rejected and where; skipped files are also listed in a file in the folder.

    Returns:
        The counters of what was read.
    Raises:
        ValueError: more than `max_share` of the bytes were rejected.
    """
    files: list[tuple[str, str, int]] = []  # reason, path, rejected bytes
    for name, number in counters.items():
        if name.startswith(_REJECTED_IN):
            reason, path = name.removeprefix(_REJECTED_IN).split(_SEPARATOR, 1)
            files.append((reason, path, number))
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
