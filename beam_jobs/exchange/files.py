"""Exchange data through sorted files, so that neither a worker nor the runner holds a whole collection.

A local runner keeps every collection between two steps in its memory and passes a worker its share in one piece. Here
only the locations of the data are elements: an external merge sort, and chunks that any worker can read.
"""

import math
import os
import pickle
import uuid
import zlib
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import FileIO
from itertools import chain
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.windowed_value import WindowedValue

from beam_jobs.exchange.exchange import ITEM_OVERHEAD_BYTES, Exchange, Items, Packer, PackingDoFn

# Sorted runs of an external merge sort on disk: sorted in memory, merged while they are read.

BLOCK_BYTES = 16_000  # of items that are packed together: a merge holds one or two blocks of each run
_READ_BYTES = 16_000_000  # read ahead in all the runs of a merge, packed
_MOST_READ_BYTES = 500_000  # of that, in one run
_BUCKETS_AT_ONCE = 500  # of runs that are joined, so that few blocks of many buckets are read together
_NUMBER = np.dtype("<u8")
_TRAILER = 3  # numbers: the end of the last block, and how many numbers each part of the index has


def write_run(folder: str, items: Mapping[int, Iterable[bytes]]) -> str:
    """Write a run of items by bucket, sorted within each bucket, and return its path."""
    return _write_sorted(folder, ([sorted(items.get(bucket, ()))] for bucket in range(max(items) + 1)))


def join_runs(folder: str, runs: Sequence[str]) -> str:
    """Merge runs into one, and return its path; each block is read once."""
    return _write_sorted(folder, _merge_buckets(range(max(map(_count_buckets, runs))), runs))


def merge_runs(bucket: int, runs: Sequence[str]) -> Iterator[bytes]:
    """Return an iterator over the items of a bucket from all runs, in order, with a few blocks per run in memory."""
    return chain.from_iterable(chain.from_iterable(_merge_buckets(range(bucket, bucket + 1), runs)))


def _write_sorted(folder: str, buckets: Iterable[Iterable[list[bytes]]]) -> str:
    """Write the items of each bucket, given as lists in sorted order.

    A run is its packed blocks and an index: the number of the first block of each bucket, and of the block after the
    last one; the offset of each block, and of the end of the last one; the numbers of `_TRAILER`.
    """
    path, packer = new_file(folder), Packer()
    first_blocks, offsets = [0], [0]
    with open(path, "wb") as file:
        for lists in buckets:
            for block in chain.from_iterable(map(_split, lists)):
                offsets.append(offsets[-1] + file.write(packer.pack(block)))
            first_blocks.append(len(offsets) - 1)
        index = [*first_blocks, *offsets, offsets[-1], len(first_blocks), len(offsets)]
        file.write(np.array(index, _NUMBER).tobytes())
    return str(path)


def _split(items: list[bytes]) -> Iterator[list[bytes]]:
    """Split a list into blocks of about BLOCK_BYTES."""
    step = max(1, BLOCK_BYTES * len(items) // (1 + sum(map(len, items))))
    for start in range(0, len(items), step):
        yield items[start : start + step]


@dataclass(slots=True)
class _Part:
    """What is in memory of the items of a bucket in one run.

    Attributes:
        blocks: the blocks that are still to be read; None if there are none.
        items: items in order, of which those before `start` are used.
        enough: the number of items of the first block.
    """

    blocks: Iterator[list[bytes]] | None
    items: list[bytes]
    start: int = 0
    enough: int = 0

    def fill(self) -> None:
        """Read a block unless more than one is in memory."""
        if self.blocks is None or len(self.items) - self.start > self.enough:
            return
        if block := next(self.blocks, None):
            self.items, self.start = self.items[self.start :] + block, 0
            self.enough = self.enough or len(block)
        else:
            self.blocks = None

    def take(self, last: bytes | None) -> list[bytes]:
        """Return the unused items up to `last`, or all of them."""
        start = self.start
        self.start = len(self.items) if last is None else bisect_right(self.items, last, start)
        return self.items[start : self.start]


def _merge_buckets(buckets: range, runs: Sequence[str]) -> Iterator[Iterator[list[bytes]]]:
    """Yield the items of each bucket from all runs; those of a bucket must be used before the next one."""
    packer, read_bytes = Packer(), min(_MOST_READ_BYTES, _READ_BYTES // max(1, len(runs)))
    for start in range(buckets.start, buckets.stop, _BUCKETS_AT_ONCE):
        together = range(start, min(start + _BUCKETS_AT_ONCE, buckets.stop))
        readers = [_RunReader(path, together, packer, read_bytes) for path in runs]
        for bucket in together:
            yield _merge([reader.read(bucket) for reader in readers])


def _merge(sources: Iterable[Iterator[list[bytes]]]) -> Iterator[list[bytes]]:
    """Yield the items of sorted blocks from several runs in order, in lists; faster per item than `heapq.merge`.

    Items up to the least of the last items in memory precede all that are still to be read. As each run has more than a
    block in memory, a list takes about a block of each, so the cost of an item does not grow with the number of runs.
    """
    parts = [_Part(blocks, []) for blocks in sources]
    while parts:
        for part in parts:
            part.fill()
        last = min((part.items[-1] for part in parts if part.blocks), default=None)
        ready = list(chain.from_iterable(part.take(last) for part in parts))
        ready.sort()  # Timsort merges the sorted parts
        yield ready
        parts = [part for part in parts if part.blocks or part.start < len(part.items)]


class _RunReader:
    """Read the blocks of consecutive buckets of a run in order, at least one and up to `read_bytes` at a time."""

    def __init__(self, path: str, buckets: range, packer: Packer, read_bytes: int):
        self._path, self._packer, self._read_bytes = path, packer, read_bytes
        with open_again(path) as file:
            self._firsts, self._offsets = _Index(file).find_blocks(buckets)
        self._start = buckets.start
        self._found, self._first, self._end = memoryview(b""), 0, 0  # the blocks in memory, and their numbers

    def read(self, bucket: int) -> Iterator[list[bytes]]:
        """Yield the blocks of a bucket."""
        place = bucket - self._start
        if place + 1 >= len(self._firsts):
            return
        for block in range(self._firsts[place], self._firsts[place + 1]):
            if block >= self._end:
                self._read_ahead(block)
            start, end = (offset - self._offsets[self._first] for offset in self._offsets[block : block + 2])
            yield self._packer.unpack(self._found[start:end])

    def _read_ahead(self, block: int) -> None:
        offsets = self._offsets
        self._first, self._end = block, max(block + 1, bisect_right(offsets, offsets[block] + self._read_bytes) - 1)
        with open_again(self._path) as file:
            self._found = memoryview(read_from(file, offsets[block], offsets[self._end] - offsets[block]))


class _Index:
    """The index at the end of a run.

    Attributes:
        buckets: number of buckets.
    """

    def __init__(self, file: FileIO):
        self._file, size = file, os.fstat(file.fileno()).st_size
        end, firsts, offsets = self._read(max(0, size - _TRAILER * _NUMBER.itemsize), _TRAILER)
        if size != end + _NUMBER.itemsize * (firsts + offsets + _TRAILER):
            raise _was_cut(file)
        self.buckets = firsts - 1
        self._firsts, self._offsets = end, end + _NUMBER.itemsize * firsts

    def find_blocks(self, buckets: range) -> tuple[list[int], list[int]]:
        """Return the numbers of the first block of each bucket and of the block after the last one, from 0 on, and the
        offsets of the blocks and of the end of the last one. Buckets beyond those of the run are left out.
        """
        stop = min(buckets.stop, self.buckets)
        if buckets.start >= stop:
            return [], []
        firsts = self._read(self._firsts + _NUMBER.itemsize * buckets.start, stop - buckets.start + 1)
        offsets = self._read(self._offsets + _NUMBER.itemsize * firsts[0], firsts[-1] - firsts[0] + 1)
        return [first - firsts[0] for first in firsts], offsets

    def _read(self, start: int, count: int) -> list[int]:
        return np.frombuffer(read_from(self._file, start, _NUMBER.itemsize * count), _NUMBER).tolist()


def _count_buckets(path: str) -> int:
    with open_again(path) as file:
        return _Index(file).buckets


def open_again(path: str) -> FileIO:
    """Open a file of the job; files are open only while they are read, since there may be many."""
    try:
        return FileIO(path)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"A job's files must stay until it ends. Received: {path}, which is gone. Run it again."
        ) from None


def read_from(file: FileIO, start: int, length: int) -> bytes:
    found = os.pread(file.fileno(), length, start)
    if len(found) < length:
        raise _was_cut(file)
    return found


def _was_cut(file: FileIO) -> ValueError:
    return ValueError(
        f"A job's files must stay whole until it ends. Received: {str(file.name)}, which was cut. Run it again."
    )


def new_file(folder: str) -> Path:
    """Return a file path that no other attempt uses; fails if the job's folder is gone, and with it the job."""
    Path(folder).mkdir(exist_ok=True)
    return Path(folder) / uuid.uuid4().hex


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
