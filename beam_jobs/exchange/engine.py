"""Exchange data through the shuffle of the engine that runs the job; its workers need no shared folder.

An engine copies what it moves many times: between its processes and ours, and to its disks. So elements go through it
packed (`exchange.py`), and items in batches.
"""

import struct
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, repeat
from typing import Any

import apache_beam as beam
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.windowed_value import WindowedValue

from beam_jobs.exchange.exchange import ITEM_OVERHEAD_BYTES, Exchange, Items, PackingDoFn

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
