"""Move data between the steps of a job through files, so that neither a worker nor the runner holds a collection.

A local runner keeps every collection between two steps in its memory and hands a worker its share in one piece. Here
only the places of the data travel as elements: an external merge sort, and chunks that any worker can take.
"""

import heapq
import io
import pickle
import struct
import uuid
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import apache_beam as beam
import numpy as np
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.windowed_value import WindowedValue

CHUNK_BYTES = 256_000  # small enough to keep all workers busy, large enough for the runner to hold every place
RUN_BYTES = 8_000_000  # what a worker sorts at a time
_MERGE_BYTES = 16_000_000  # what a worker reads ahead of all the runs that it merges
_MOST_BLOCK_BYTES = 1_000_000  # of that for one run
_MOST_SORTED_RUNS = 256  # beyond, to look through all blocks for each that is read takes longer than a heap
_ITEM_OVERHEAD_BYTES = 60  # of a Python object in a list
_LENGTH = struct.Struct("<I")
_OFFSET = struct.Struct("<Q")


class SpreadThroughFiles(beam.PTransform):
    """Give every element to some worker again, in chunks, so that those of one large file keep all workers busy.

    Args:
        folder: a new folder for the chunks, in one that every worker can reach.
        conditions: a collection of booleans, waited for before the first element is given; none is if one is False.
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
    """Sort (bucket, items), items as bytes, and emit what `use` makes of each bucket, also of an empty one.

    Takes a dict of collections: `items`, the pairs of a bucket and a list, and `buckets`, all the numbers of buckets,
    from 0 on. Runs that a failed attempt left are never named to a reader.

    Args:
        folder: a new folder for the sorted runs, in one that every worker can reach.
        use: takes the number of a bucket, an iterator over its items in order, and the arguments, and yields results.
        arguments: further ones, side inputs among them.
    """

    def __init__(self, folder: Path, use: Callable[..., Iterable], *arguments: Any):
        super().__init__()
        self._folder, self._use, self._arguments = str(folder), use, arguments

    def expand(self, inputs):  # a dict of collections, for which Beam has no type hint
        runs = inputs["items"] | "WriteRuns" >> beam.ParDo(WriteRuns(self._folder))
        return {"runs": runs, "buckets": inputs["buckets"]} | "MergeRuns" >> MergeRuns(self._use, *self._arguments)


class MergeRuns(beam.PTransform):
    """Merge sorted runs, and emit what `use` makes of each bucket, also of an empty one.

    Takes a dict of collections: `runs`, the paths that `write_run` gave, and `buckets`, all the numbers of buckets.

    Args:
        use: takes the number of a bucket, an iterator over its items in order, and the arguments, and yields results.
        arguments: further ones, side inputs among them.
    """

    def __init__(self, use: Callable[..., Iterable], *arguments: Any):
        super().__init__()
        self._use, self._arguments = use, arguments

    def expand(self, inputs):  # a dict of collections, for which Beam has no type hint
        runs = beam.pvalue.AsList(inputs["runs"])
        return (
            inputs["buckets"]
            | "SpreadBuckets" >> beam.Reshuffle()
            | "UseBucket" >> beam.FlatMap(use_bucket, runs, self._use, *self._arguments)
        )


class WriteChunks(beam.DoFn):
    """Write the elements of a bundle into one file, and emit (path, offset, bytes) of each chunk of it."""

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
        self._path = self._path or _new_file(self._folder)
        with open(self._path, "ab") as file:
            offset = file.tell()
            length = file.write(b"".join(self._items))
        self._items, self._bytes = [], 0
        return str(self._path), offset, length


def read_chunk(place: tuple[str, int, int], conditions: Sequence[bool] = ()) -> Iterator[Any]:
    """Yield the elements of a chunk, where all conditions hold."""
    if not all(conditions):
        return
    path, offset, length = place
    with _open_again(path) as file:
        chunk = io.BytesIO(_read_at(file, offset, length))
    while chunk.tell() < length:
        yield pickle.load(chunk)  # written by this job


class WriteRuns(beam.DoFn):
    """Sort the (bucket, items) of a bundle, as many as fit into RUN_BYTES at a time, and emit the path of each run."""

    def __init__(self, folder: str):
        self._folder = folder

    def start_bundle(self) -> None:
        self._buckets: defaultdict[int, list[bytes]] = defaultdict(list)
        self._bytes = 0

    def process(self, pair: tuple[int, list[bytes]]) -> Iterator[str]:
        bucket, items = pair
        self._buckets[bucket] += items
        self._bytes += sum(map(len, items)) + _ITEM_OVERHEAD_BYTES * len(items)
        if self._bytes >= RUN_BYTES:
            yield self._write()

    def finish_bundle(self) -> Iterator[WindowedValue]:
        if self._buckets:
            yield GlobalWindows.windowed_value(self._write())

    def _write(self) -> str:
        path = write_run(self._folder, self._buckets)
        self.start_bundle()
        return path


def write_run(folder: str, items: Mapping[int, Iterable[bytes]]) -> str:
    """Write a run of items by bucket, sorted within each, and return its path.

    A run begins with the number of buckets and the offset at which each begins and the last ends, uint64; an item is
    its length, uint32, and its bytes; little-endian.
    """
    path, buckets = _new_file(folder), max(items) + 1
    offsets = np.full(buckets + 1, _OFFSET.size * (buckets + 2), "<u8")
    with open(path, "wb") as file:
        file.seek(int(offsets[0]))
        for bucket in range(buckets):
            for item in sorted(items.get(bucket, ())):
                file.write(_LENGTH.pack(len(item)) + item)
            offsets[bucket + 1] = file.tell()
        file.seek(0)
        file.write(_OFFSET.pack(buckets) + offsets.tobytes())
    return str(path)


def use_bucket(bucket: int, runs: Sequence[str], use: Callable[..., Iterable], *arguments: Any) -> Iterable:
    return use(bucket, merge_runs(bucket, runs), *arguments)


def merge_runs(bucket: int, runs: Sequence[str]) -> Iterator[bytes]:
    """Return an iterator over the items of a bucket in all the runs, in order, one block of each run in memory."""
    block_bytes = min(_MOST_BLOCK_BYTES, max(4096, _MERGE_BYTES // max(1, len(runs))))
    blocks = [_read_blocks(path, bucket, block_bytes) for path in runs]
    if len(runs) > _MOST_SORTED_RUNS:
        return heapq.merge(*map(chain.from_iterable, blocks))
    return chain.from_iterable(_merge_blocks(blocks))


def _merge_blocks(readers: Sequence[Iterator[list[bytes]]]) -> Iterator[list[bytes]]:
    """Yield lists that together are all items in order, from sorted blocks; an item costs less than in `heapq.merge`.

    What is at most the least of the last items of the blocks at hand comes before all that is still to be read.
    """
    at_hand = [(block, reader) for reader in readers if (block := next(reader, None))]
    while at_hand:
        bound = min(block[-1] for block, _ in at_hand)
        ready, left = [], []
        for block, reader in at_hand:
            end = bisect_right(block, bound)
            ready += block[:end]
            if rest := block[end:] or next(reader, None):
                left.append((rest, reader))
        ready.sort()  # of sorted parts, which is to merge them
        yield ready
        at_hand = left


def _read_blocks(path: str, bucket: int, block_bytes: int) -> Iterator[list[bytes]]:
    """Yield the items of a bucket in one run, in lists; the file is open only while one is read: there may be many."""
    with _open_again(path) as file:
        (buckets,) = _OFFSET.unpack(_read_at(file, 0, _OFFSET.size))
        if bucket >= buckets:
            return
        start, end = np.frombuffer(_read_at(file, _OFFSET.size * (bucket + 1), 2 * _OFFSET.size), "<u8").tolist()
    rest = b""
    while start < end:
        with _open_again(path) as file:
            block = rest + _read_at(file, start, min(block_bytes, end - start))
        start += len(block) - len(rest)
        position, items = 0, []
        while len(block) - position >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(block, position)
            if len(block) - position - _LENGTH.size < length:
                break
            position += _LENGTH.size
            items.append(block[position : position + length])
            position += length
        rest = block[position:]
        if items:
            yield items


def _open_again(path: str) -> BinaryIO:
    try:
        return open(path, "rb")
    except FileNotFoundError:
        raise FileNotFoundError(
            f"A job's files must stay until it ends. Received: {path}, which is gone. Run it again."
        ) from None


def _read_at(file: BinaryIO, start: int, length: int) -> bytes:
    file.seek(start)
    block = file.read(length)
    if len(block) < length:
        raise ValueError(
            f"A job's files must stay whole until it ends. Received: {file.name}, which was cut. Run it again."
        )
    return block


def _new_file(folder: str) -> Path:
    """Name a file that no other attempt writes; where the job's own folder is gone, so is the job, and this fails."""
    Path(folder).mkdir(exist_ok=True)
    return Path(folder) / uuid.uuid4().hex
