"""Exchange data through files, so that neither a worker nor the runner holds a whole collection.

A local runner keeps every collection between two steps in its memory and passes a worker its share in one piece. Here
only the locations of the data are elements: an external merge sort, and chunks that any worker can read.
"""

import math
import pickle
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.windowed_value import WindowedValue

from beam_jobs.exchange.exchange import ITEM_OVERHEAD_BYTES, Exchange, Items
from beam_jobs.exchange.packing import Packer, PackingDoFn
from beam_jobs.exchange.runs import join_runs, merge_runs, new_file, open_again, read_from, write_run

CHUNK_BYTES = 256_000  # small enough to keep all workers busy, large enough for the runner to hold all locations
RUN_BYTES = 32_000_000  # sorted by a worker at a time; with 64 MB it took 18 % more memory for ten times the text
MOST_RUNS = 2500  # merged at once, 80 GB of items, of which up to two blocks of each run are in memory


class FileExchange(Exchange):
    """Sort and redistribute through files in a folder. Readers never see the files of failed attempts.

    Args:
        folder: folder of the job; every worker must reach it.
    """

    def __init__(self, folder: Path):
        self._folder = folder

    def spread(self, name: str, conditions: beam.PCollection | None = None) -> beam.PTransform:
        return SpreadThroughFiles(self._folder / name, conditions)

    def sort(self, name, use, *arguments, divide, lift=None) -> beam.PTransform:
        return SortThroughFiles(self._folder / name, use, *arguments)


class SpreadThroughFiles(beam.PTransform):
    """Implementation of `Exchange.spread`.

    Args:
        folder: a new folder for the chunks.
    """

    def __init__(self, folder: Path, conditions: beam.PCollection | None = None):
        super().__init__()
        self._folder = str(folder)
        self._side_inputs = () if conditions is None else (beam.pvalue.AsList(conditions),)

    def expand(self, items: beam.PCollection) -> beam.PCollection:
        return (
            items
            | "WriteChunks" >> beam.ParDo(WriteChunks(self._folder))
            | "SpreadChunks" >> beam.Reshuffle()
            | "ReadChunk" >> beam.FlatMap(read_chunk, *self._side_inputs)
        )


class SortThroughFiles(beam.PTransform):
    """Implementation of `Exchange.sort`: a bucket is used as a whole, and merged while it is read.

    Args:
        folder: a new folder for the sorted runs.
    """

    def __init__(self, folder: Path, use: Callable[..., Iterable], *arguments: Any):
        super().__init__()
        self._folder, self._use, self._arguments = str(folder), use, arguments

    def expand(self, inputs):  # a dict of collections, for which Beam has no type hint
        runs = inputs["items"] | "WriteRuns" >> beam.ParDo(WriteRuns(self._folder))
        count = beam.pvalue.AsSingleton(runs | "CountRuns" >> beam.combiners.Count.Globally())
        joined = (
            runs
            | "NameJoinedRun" >> beam.Map(name_joined_run, count)
            | "GroupRuns" >> beam.GroupByKey()
            | "JoinRuns" >> beam.Map(join_group, self._folder)
        )
        return (
            inputs["buckets"]
            | "SpreadBuckets" >> beam.Reshuffle()
            | "UseBucket" >> beam.FlatMap(use_bucket, beam.pvalue.AsList(joined), self._use, *self._arguments)
        )


class WriteChunks(PackingDoFn):
    """Write the elements of a bundle to one file, and emit (path, offset, bytes) for each chunk of it."""

    def __init__(self, folder: str):
        self._folder = folder

    def start_bundle(self) -> None:
        self._path: Path | None = None
        self._items: list[bytes] = []
        self._bytes = 0

    def process(self, item: Any) -> Iterator[tuple[str, int, int]]:
        self._items.append(pickle.dumps(item, pickle.HIGHEST_PROTOCOL))
        self._bytes += len(self._items[-1])
        if self._bytes >= CHUNK_BYTES:
            yield self._write()

    def finish_bundle(self) -> Iterator[WindowedValue]:
        if self._items:
            yield GlobalWindows.windowed_value(self._write())

    def _write(self) -> tuple[str, int, int]:
        self._path = self._path or new_file(self._folder)
        with open(self._path, "ab") as file:
            offset = file.tell()
            length = file.write(self.packer.pack(self._items))
        self._items, self._bytes = [], 0
        return str(self._path), offset, length


def read_chunk(place: tuple[str, int, int], conditions: Sequence[bool] = ()) -> Iterator[Any]:
    """Yield the elements of a chunk if all conditions hold."""
    if not all(conditions):
        return
    path, offset, length = place
    with open_again(path) as file:
        chunk = read_from(file, offset, length)
    yield from map(pickle.loads, Packer().unpack(chunk))  # written by this job


class WriteRuns(beam.DoFn):
    """Sort the items of a bundle in runs of about RUN_BYTES, and emit the path of each run."""

    def __init__(self, folder: str):
        self._folder = folder

    def start_bundle(self) -> None:
        self._buckets: defaultdict[int, list[bytes]] = defaultdict(list)
        self._bytes = 0

    def process(self, pair: Items) -> Iterator[str]:
        bucket, items = pair
        self._buckets[bucket] += items
        self._bytes += sum(map(len, items)) + ITEM_OVERHEAD_BYTES * len(items)
        if self._bytes >= RUN_BYTES:
            yield self._write()

    def finish_bundle(self) -> Iterator[WindowedValue]:
        if self._buckets:
            yield GlobalWindows.windowed_value(self._write())

    def _write(self) -> str:
        path = write_run(self._folder, self._buckets)
        self.start_bundle()
        return path


def name_joined_run(path: str, count: int) -> tuple[str, str]:
    """Return the joined run that a run is merged into, and the path of the run; few runs stay as they are.

    The number of joined runs is about the number of runs in each: 10,000 runs of 32 MB become 100 of 3.2 GB.
    """
    if count <= MOST_RUNS:
        return path, path
    return str(zlib.crc32(path.encode()) % max(math.isqrt(count), count // MOST_RUNS)), path


def join_group(group: tuple[str, Iterable[str]], folder: str) -> str:
    """Merge the runs of a group, and return the path of the joined run."""
    paths = sorted(group[1])
    return paths[0] if len(paths) == 1 else join_runs(folder, paths)


def use_bucket(bucket: int, runs: Sequence[str], use: Callable[..., Iterable], *arguments: Any) -> Iterable:
    """Apply `use` to the items of a bucket from all runs."""
    return use(bucket, merge_runs(bucket, runs), *arguments)
