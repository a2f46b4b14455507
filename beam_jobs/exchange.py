"""Exchange of data between the steps of a job: through the shuffle of the engine that runs it, or through files.

Both give the same bytes, and no step of a job knows which is used. An engine needs no folder that its workers share,
but copies what it moves many times: between its processes and ours, and to its disks. So elements go through it packed,
and items in batches. A local runner keeps every collection between two steps in its memory and passes a worker its
share in one piece. So with files only the locations of the data are elements: of the runs of an external merge sort,
and of chunks that any worker can read.
"""

import math
import pickle
import struct
import zlib
from abc import ABC, abstractmethod
from argparse import ArgumentParser
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.windowed_value import WindowedValue

from beam_jobs.sorted_runs import Packer, join_runs, merge_runs, new_file, open_again, read_from, write_run

FILES, ENGINE = "files", "engine"
# Runners that keep the data between two steps in the memory of one process
_IN_MEMORY = ("FnApiRunner", "DirectRunner", "SwitchingDirectRunner", "BundleBasedDirectRunner")
Items = tuple[int, list[bytes]]  # the number of a bucket, and some of its items
ITEM_OVERHEAD_BYTES = 60  # of memory per Python object in a list


class Exchange(ABC):
    """Move data between steps such that no worker holds a whole collection.

    The caller names the steps: names are folder names, and each is used once per job.
    """

    @abstractmethod
    def spread(self, name: str, conditions: beam.PCollection | None = None) -> beam.PTransform:
        """Return a step that redistributes elements over the workers, so that those of one file keep all workers busy.

        Args:
            conditions: a collection of booleans, which is complete before the first element is emitted; if any is
                False, no element is emitted.
        """

    @abstractmethod
    def sort(
        self,
        name: str,
        use: Callable[..., Iterable],
        *arguments: Any,
        divide: Callable[..., bytes],
        lift: beam.PTransform | None = None,
    ) -> beam.PTransform:
        """Return a step that sorts the items of each bucket, and emits the results of `use`.

        The step takes a dict of collections: `items`, of Items, and `buckets`, all bucket numbers, starting from 0.

        Args:
            use: takes a bucket number, an iterator over items of the bucket in order, and the arguments, and yields
                results. It is called for a bucket as a whole, or for each group of `divide`, and at least once for
                every bucket, including empty ones.
            arguments: further arguments of `use` and `divide`, which may be side inputs.
            divide: takes a bucket number, an item of the bucket and the arguments, and returns the name of the item's
                group. The size of a bucket is not limited; a group must fit into the memory of a worker.
            lift: a step from Items to fewer Items (combiner lifting), for an exchange that would otherwise send them
                all.
        """


class ExchangeOptions(PipelineOptions):
    """Our option `--exchange` as one of Beam's options, so that it is given with them."""

    @classmethod
    def _add_argparse_args(cls, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--exchange",
            choices=(FILES, ENGINE),
            help="How data moves between steps: through files beside the output, which every worker must reach, or by "
            "the shuffle of the engine. Default: files with Beam's local runners, the engine with others.",
        )


def choose_exchange(options: Sequence[str], folder: Path, is_shared: bool = True) -> Exchange:
    """Return the exchange of a job.

    Args:
        options: Beam's options, and `--exchange`.
        folder: folder of the job.
        is_shared: whether workers on other machines may reach the folder.
    Raises:
        ValueError: files are requested, but workers cannot reach the folder.
    """
    parsed = PipelineOptions(list(options))
    runner = parsed.view_as(StandardOptions).runner
    is_local = runner is None or runner.rsplit(".", 1)[-1] in _IN_MEMORY
    chosen = parsed.view_as(ExchangeOptions).exchange or (FILES if is_local else ENGINE)
    if chosen == ENGINE:
        return EngineExchange()
    if not (is_local or is_shared):
        raise ValueError(
            "`--exchange=files` must have an output on a disk that all workers share. Received: an object store, "
            f"--runner={runner}. Leave --exchange out."
        )
    return FileExchange(folder)


class PackingDoFn(beam.DoFn):
    """DoFn with a Packer, `self.packer`; Beam calls an instance from one thread at a time."""

    def setup(self) -> None:
        self.packer = Packer()


# Through the shuffle of the engine: items are grouped by key, and each group is sorted in memory.

BATCH_BYTES = 8_000_000  # of items that a worker collects before it packs those of each group
_BUCKET = struct.Struct(">Q")  # before the name of a group
_Packed = tuple[bytes, bytes]  # the key of a group, and some of its items


class EngineExchange(Exchange):
    """Group items by key, and sort each group in memory."""

    def spread(self, name: str, conditions: beam.PCollection | None = None) -> beam.PTransform:
        return SpreadByEngine(conditions)

    def sort(self, name, use, *arguments, divide, lift=None) -> beam.PTransform:
        return SortByEngine(use, arguments, divide, lift)


class SpreadByEngine(beam.PTransform):
    """Implementation of `Exchange.spread`."""

    def __init__(self, conditions: beam.PCollection | None):
        super().__init__()
        self._side_inputs = () if conditions is None else (beam.pvalue.AsList(conditions),)

    def expand(self, elements: beam.PCollection) -> beam.PCollection:
        return (
            elements
            | "PackElements" >> beam.ParDo(PackElement()).with_output_types(bytes)
            | "SpreadElements" >> beam.Reshuffle()
            | "UnpackElements" >> beam.ParDo(UnpackElement(), *self._side_inputs)
        )


class SortByEngine(beam.PTransform):
    """Implementation of `Exchange.sort`: each group of `divide` has a key, and each bucket one more without items."""

    def __init__(
        self,
        use: Callable[..., Iterable],
        arguments: Sequence[Any],
        divide: Callable[..., bytes],
        lift: beam.PTransform | None,
    ):
        super().__init__()
        self._use, self._arguments, self._divide, self._lift = use, arguments, divide, lift

    def expand(self, inputs):  # a dict of collections, for which Beam has no type hint
        items = inputs["items"] if self._lift is None else inputs["items"] | "LiftItems" >> self._lift
        divide = beam.ParDo(DivideItems(self._divide), *self._arguments).with_output_types(_Packed)
        name = beam.ParDo(NameBucket()).with_output_types(_Packed)
        return (
            (items | "DivideItems" >> divide, inputs["buckets"] | "NameBuckets" >> name)
            | "FlattenItems" >> beam.Flatten()
            | "GroupItems" >> beam.GroupByKey()
            | "UseGroup" >> beam.ParDo(UseGroup(self._use), *self._arguments)
        )


class PackElement(PackingDoFn):
    """Pack an element."""

    def process(self, element: Any) -> Iterator[bytes]:
        yield self.packer.pack(element)


class UnpackElement(PackingDoFn):
    """Unpack an element, and emit it if all conditions hold."""

    def process(self, packed: bytes, conditions: Sequence[bool] = ()) -> Iterator[Any]:
        if all(conditions):
            yield self.packer.unpack(packed)


class NameBucket(PackingDoFn):
    """Emit the key of a bucket's empty group, and no items."""

    def process(self, bucket: int) -> Iterator[tuple[bytes, bytes]]:
        yield _BUCKET.pack(bucket), self.packer.pack([])


class DivideItems(PackingDoFn):
    """Divide the items of a bundle into groups, and emit the key and the items of each for every BATCH_BYTES.

    Args:
        divide: see `Exchange.sort`.
    """

    def __init__(self, divide: Callable[..., bytes]):
        self._divide = divide

    def start_bundle(self) -> None:
        self._groups: defaultdict[bytes, list[bytes]] = defaultdict(list)
        self._bytes = 0

    def process(self, pair: Items, *arguments: Any) -> Iterator[tuple[bytes, bytes]]:
        bucket, items = pair
        name = _BUCKET.pack(bucket)
        for item in items:
            self._groups[name + self._divide(bucket, item, *arguments)].append(item)
        self._bytes += sum(map(len, items)) + ITEM_OVERHEAD_BYTES * len(items)
        if self._bytes >= BATCH_BYTES:
            yield from self._take()

    def finish_bundle(self) -> Iterator[WindowedValue]:
        yield from map(GlobalWindows.windowed_value, self._take())

    def _take(self) -> Iterator[tuple[bytes, bytes]]:
        groups = self._groups
        self.start_bundle()
        while groups:
            key, items = groups.popitem()
            yield key, self.packer.pack(items)


class UseGroup(PackingDoFn):
    """Sort a group in memory and apply `use`; equal items, as from copies of a document, are stored once.

    Args:
        use: see `Exchange.sort`.
    """

    def __init__(self, use: Callable[..., Iterable]):
        self._use = use

    def process(self, group: tuple[bytes, Iterable[bytes]], *arguments: Any) -> Iterable:
        key, parts = group
        (bucket,) = _BUCKET.unpack_from(key)
        counts = Counter(chain.from_iterable(map(self.packer.unpack, parts)))
        return self._use(bucket, chain.from_iterable(repeat(item, counts[item]) for item in sorted(counts)), *arguments)


# Through files next to the output, so that neither a worker nor the runner holds a whole collection.

CHUNK_BYTES = 256_000  # small enough to keep all workers busy, large enough for the runner to hold all locations
RUN_BYTES = 32_000_000  # sorted by a worker at a time; with 64 MB it took 18 % more memory for ten times the text
MOST_RUNS = 2500  # merged at once, 80 GB of items, of which up to two blocks of each run are in memory


@dataclass(frozen=True)
class FileExchange(Exchange):
    """Sort and redistribute through files in a folder. Readers never see the files of failed attempts.

    Attributes:
        folder: folder of the job; every worker must reach it.
    """

    folder: Path

    def spread(self, name: str, conditions: beam.PCollection | None = None) -> beam.PTransform:
        return SpreadThroughFiles(self.folder / name, conditions)

    def sort(self, name, use, *arguments, divide, lift=None) -> beam.PTransform:
        return SortThroughFiles(self.folder / name, use, *arguments)


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
