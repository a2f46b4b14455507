"""Packed files of a job: sorted runs of an external merge sort, sorted in memory and merged while they are read.

Elements are pickled and compressed, in files as in the shuffle of an engine.
"""

import os
import pickle
import uuid
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import FileIO
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import zstandard  # comes with Apache Beam

BLOCK_BYTES = 16_000  # of items that are packed together: a merge holds one or two blocks of each run
_READ_BYTES = 16_000_000  # read ahead in all the runs of a merge, packed
_MOST_READ_BYTES = 500_000  # of that, in one run
_BUCKETS_AT_ONCE = 500  # of runs that are joined, so that few blocks of many buckets are read together
_NUMBER = np.dtype("<u8")
_TRAILER = 3  # numbers: the end of the last block, and how many numbers each part of the index has
_LEVEL = 1  # of zstd: records take a third of the bytes for 1 s per GB; level 3 takes 1.5 times as long for 5 % less


@dataclass
class Packer:
    """Pack and unpack elements; for one thread at a time, since it keeps the buffers of zstd."""

    _compressor: Any = field(init=False, default_factory=lambda: zstandard.ZstdCompressor(level=_LEVEL))
    _decompressor: Any = field(init=False, default_factory=zstandard.ZstdDecompressor)

    def pack(self, element: Any) -> bytes:
        return self._compressor.compress(pickle.dumps(element, pickle.HIGHEST_PROTOCOL))

    def unpack(self, packed: bytes | memoryview) -> Any:
        return pickle.loads(self._decompressor.decompress(packed))  # written by this job


def write_run(folder: str, items: Mapping[int, Iterable[bytes]]) -> str:
    """Write a run of items by bucket, sorted within each bucket, and return its path."""
    return _write_sorted(folder, ([sorted(items.get(bucket, ()))] for bucket in range(max(items) + 1)))


def join_runs(folder: str, runs: Sequence[str]) -> str:
    """Merge runs into one, and return its path; each block is read once."""
    buckets = max(_read_index(path, range(0))[0] for path in runs)
    return _write_sorted(folder, _merge_buckets(range(buckets), runs))


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
            for items in lists:
                step = max(1, BLOCK_BYTES * len(items) // (1 + sum(map(len, items))))
                for start in range(0, len(items), step):
                    offsets.append(offsets[-1] + file.write(packer.pack(items[start : start + step])))
            first_blocks.append(len(offsets) - 1)
        index = [*first_blocks, *offsets, offsets[-1], len(first_blocks), len(offsets)]
        file.write(np.array(index, _NUMBER).tobytes())
    return str(path)


def _merge_buckets(buckets: range, runs: Sequence[str]) -> Iterator[Iterator[list[bytes]]]:
    """Yield the items of each bucket from all runs; those of a bucket must be used before the next one."""
    packer, read_bytes = Packer(), min(_MOST_READ_BYTES, _READ_BYTES // max(1, len(runs)))
    for start in range(buckets.start, buckets.stop, _BUCKETS_AT_ONCE):
        together = range(start, min(start + _BUCKETS_AT_ONCE, buckets.stop))
        readers = [_RunReader(path, together, packer, read_bytes) for path in runs]
        for bucket in together:
            yield _merge([reader.read(bucket) for reader in readers])


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


def _merge(sources: Iterable[Iterator[list[bytes]]]) -> Iterator[list[bytes]]:
    """Yield the items of sorted blocks from several runs in order, in lists; faster per item than `heapq.merge`.

    Items up to the least of the last items in memory precede all that are still to be read. As each run has more than a
    block in memory, a list takes about a block of each, so the cost of an item does not grow with the number of runs.
    """
    parts = [_Part(blocks, []) for blocks in sources]
    while parts:
        for part in parts:
            if part.blocks is None or len(part.items) - part.start > part.enough:
                continue
            if block := next(part.blocks, None):
                part.items, part.start = part.items[part.start :] + block, 0
                part.enough = part.enough or len(block)
            else:
                part.blocks = None
        last = min((part.items[-1] for part in parts if part.blocks), default=None)
        ready: list[bytes] = []
        for part in parts:
            end = len(part.items) if last is None else bisect_right(part.items, last, part.start)
            ready += part.items[part.start : end]
            part.start = end
        ready.sort()  # Timsort merges the sorted parts
        yield ready
        parts = [part for part in parts if part.blocks or part.start < len(part.items)]


class _RunReader:
    """Read the blocks of consecutive buckets of a run in order, at least one and up to `read_bytes` at a time."""

    def __init__(self, path: str, buckets: range, packer: Packer, read_bytes: int):
        self._path, self._packer, self._read_bytes = path, packer, read_bytes
        _, self._firsts, self._offsets = _read_index(path, buckets)
        self._start = buckets.start
        self._found, self._first, self._end = memoryview(b""), 0, 0  # the blocks in memory, and their numbers

    def read(self, bucket: int) -> Iterator[list[bytes]]:
        """Yield the blocks of a bucket."""
        place, offsets = bucket - self._start, self._offsets
        if place + 1 >= len(self._firsts):
            return
        for block in range(self._firsts[place], self._firsts[place + 1]):
            if block >= self._end:
                end = bisect_right(offsets, offsets[block] + self._read_bytes) - 1
                self._first, self._end = block, max(block + 1, end)
                with open_again(self._path) as file:
                    self._found = memoryview(read_from(file, offsets[block], offsets[self._end] - offsets[block]))
            start, end = (offset - offsets[self._first] for offset in offsets[block : block + 2])
            yield self._packer.unpack(self._found[start:end])


def _read_index(path: str, buckets: range) -> tuple[int, list[int], list[int]]:
    """Read the part of a run's index on some of its buckets; those beyond the last one are left out.

    Returns:
        The number of buckets of the run; the numbers of the first block of each of `buckets` and of the block after the
        last one, from 0 on; the offsets of these blocks and of the end of the last one.
    """
    width = _NUMBER.itemsize

    def read(start: int, count: int) -> list[int]:
        return np.frombuffer(read_from(file, start, width * count), _NUMBER).tolist()

    with open_again(path) as file:
        size = os.fstat(file.fileno()).st_size
        end, num_firsts, num_offsets = read(max(0, size - _TRAILER * width), _TRAILER)
        if size != end + width * (num_firsts + num_offsets + _TRAILER):
            raise _was_cut(file)
        stop = min(buckets.stop, num_firsts - 1)
        if buckets.start >= stop:
            return num_firsts - 1, [], []
        firsts = read(end + width * buckets.start, stop - buckets.start + 1)
        offsets = read(end + width * (num_firsts + firsts[0]), firsts[-1] - firsts[0] + 1)
    return num_firsts - 1, [first - firsts[0] for first in firsts], offsets


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
