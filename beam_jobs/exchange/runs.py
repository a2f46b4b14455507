"""Sorted runs of an external merge sort on disk: sorted in memory, merged while they are read."""

import heapq
import struct
import uuid
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import chain
from pathlib import Path
from typing import BinaryIO

import numpy as np

_MERGE_BYTES = 16_000_000  # read-ahead of a worker for all the runs that it merges
_MOST_BLOCK_BYTES = 1_000_000  # of that, for one run
_MOST_SORTED_RUNS = 256  # beyond this, scanning all blocks for each block read is slower than a heap
_LENGTH = struct.Struct("<I")
_OFFSET = struct.Struct("<Q")


def write_run(folder: str, items: Mapping[int, Iterable[bytes]]) -> str:
    """Write a run of items by bucket, sorted within each bucket, and return its path."""
    buckets = max(items) + 1
    return _write_sorted(folder, buckets, ([sorted(items.get(bucket, ()))] for bucket in range(buckets)))


def join_runs(folder: str, runs: Sequence[str]) -> str:
    """Merge runs into one, and return its path; each run is read once, sequentially."""
    with ExitStack() as stack:
        files = [stack.enter_context(open_again(path)) for path in runs]
        offsets = [_read_offsets(file) for file in files]
        count, block_bytes = max(map(len, offsets)) - 1, _block_bytes(len(runs))

        def merge(bucket: int) -> Iterator[list[bytes]]:
            return _merge_blocks(
                [
                    _read_blocks(partial(read_at, file), ends[bucket], ends[bucket + 1], block_bytes)
                    for file, ends in zip(files, offsets, strict=True)
                    if bucket < len(ends) - 1
                ]
            )

        return _write_sorted(folder, count, map(merge, range(count)))


def _write_sorted(folder: str, count: int, buckets: Iterable[Iterable[list[bytes]]]) -> str:
    """Write the items of each bucket, given as lists in sorted order.

    A run starts with the number of buckets, the offset of each bucket and the end offset, as uint64. An item is its
    length as uint32 and its bytes. All numbers are little-endian.
    """
    path = new_file(folder)
    offsets = np.full(count + 1, _OFFSET.size * (count + 2), "<u8")
    with open(path, "wb") as file:
        file.seek(int(offsets[0]))
        for bucket, blocks in enumerate(buckets):
            for items in blocks:
                lengths = map(_LENGTH.pack, map(len, items))
                file.write(b"".join(chain.from_iterable(zip(lengths, items, strict=True))))
            offsets[bucket + 1] = file.tell()
        file.seek(0)
        file.write(_OFFSET.pack(count) + offsets.tobytes())
    return str(path)


def merge_runs(bucket: int, runs: Sequence[str]) -> Iterator[bytes]:
    """Return an iterator over the items of a bucket from all runs, in order, with one block per run in memory.

    A file is open only while a block of it is read, since there may be many.
    """
    blocks = []
    for path in runs:
        with open_again(path) as file:
            if bucket < _count_buckets(file):
                start, end = _read_numbers(file, bucket + 1, 2)
                blocks.append(_read_blocks(partial(_read_again, path), start, end, _block_bytes(len(runs))))
    if len(blocks) > _MOST_SORTED_RUNS:
        return heapq.merge(*map(chain.from_iterable, blocks))
    return chain.from_iterable(_merge_blocks(blocks))


def _block_bytes(runs: int) -> int:
    return min(_MOST_BLOCK_BYTES, max(4096, _MERGE_BYTES // max(1, runs)))


def _count_buckets(file: BinaryIO) -> int:
    return _read_numbers(file, 0, 1)[0]


def _read_offsets(file: BinaryIO) -> list[int]:
    return _read_numbers(file, 1, _count_buckets(file) + 1)


def _read_numbers(file: BinaryIO, first: int, count: int) -> list[int]:
    return np.frombuffer(read_at(file, _OFFSET.size * first, _OFFSET.size * count), "<u8").tolist()


def _merge_blocks(readers: Sequence[Iterator[list[bytes]]]) -> Iterator[list[bytes]]:
    """Merge sorted blocks, and yield the items in order, in lists; faster per item than `heapq.merge`.

    Items up to the minimum of the last items of the current blocks precede everything still to be read.
    """
    at_hand = [(block, 0, reader) for reader in readers if (block := next(reader, None))]
    while at_hand:
        bound = min(block[-1] for block, _, _ in at_hand)
        ready, left = [], []
        for block, start, reader in at_hand:
            end = bisect_right(block, bound, start)
            ready += block[start:end]
            if end < len(block):
                left.append((block, end, reader))
            elif block := next(reader, None):
                left.append((block, 0, reader))
        ready.sort()  # Timsort merges the sorted parts
        yield ready
        at_hand = left


def _read_blocks(read: Callable[[int, int], bytes], start: int, end: int, block_bytes: int) -> Iterator[list[bytes]]:
    """Yield the items between two offsets of a run, in lists.

    Args:
        read: takes an offset and a number of bytes.
    """
    rest = b""
    while start < end:
        block = rest + read(start, min(block_bytes, end - start))
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


def _read_again(path: str, start: int, length: int) -> bytes:
    with open_again(path) as file:
        return read_at(file, start, length)


def open_again(path: str) -> BinaryIO:
    try:
        return open(path, "rb")
    except FileNotFoundError:
        raise FileNotFoundError(
            f"A job's files must stay until it ends. Received: {path}, which is gone. Run it again."
        ) from None


def read_at(file: BinaryIO, start: int, length: int) -> bytes:
    if file.tell() != start:
        file.seek(start)  # discards the buffer, so it is avoided where possible
    block = file.read(length)
    if len(block) < length:
        raise ValueError(
            f"A job's files must stay whole until it ends. Received: {file.name}, which was cut. Run it again."
        )
    return block


def new_file(folder: str) -> Path:
    """Return a file path that no other attempt uses; fails if the job's folder is gone, and with it the job."""
    Path(folder).mkdir(exist_ok=True)
    return Path(folder) / uuid.uuid4().hex
