"""Exchange data through the shuffle of the engine that runs the job; its workers need no shared folder."""

import struct
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, repeat
from typing import Any

import apache_beam as beam

from beam_jobs.exchange.exchange import Exchange, Items

_BUCKET = struct.Struct(">Q")  # before the name of a group
_Group = tuple[bytes, list[bytes]]  # the key of a group, and some of its items


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
        self._conditions = conditions

    def expand(self, elements: beam.PCollection) -> beam.PCollection:
        spread = elements | "SpreadElements" >> beam.Reshuffle()
        if self._conditions is None:
            return spread
        return spread | "AwaitConditions" >> beam.FlatMap(keep_where_all, beam.pvalue.AsList(self._conditions))


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
        divide = beam.FlatMap(divide_items, self._divide, *self._arguments).with_output_types(_Group)
        name = beam.Map(name_bucket).with_output_types(_Group)
        return (
            (items | "DivideItems" >> divide, inputs["buckets"] | "NameBuckets" >> name)
            | "FlattenItems" >> beam.Flatten()
            | "GroupItems" >> beam.GroupByKey()
            | "UseGroup" >> beam.FlatMap(use_group, self._use, *self._arguments)
        )


def keep_where_all(element: Any, conditions: Sequence[bool]) -> Iterator[Any]:
    """Yield an element if all conditions hold."""
    if all(conditions):
        yield element


def name_bucket(bucket: int) -> tuple[bytes, list[bytes]]:
    """Return the key of a bucket's empty group, and no items."""
    return _BUCKET.pack(bucket), []


def divide_items(pair: Items, divide: Callable[..., bytes], *arguments: Any) -> Iterator[tuple[bytes, list[bytes]]]:
    """Divide items of a bucket into groups; yield the key and the items of each group."""
    bucket, items = pair
    groups: defaultdict[bytes, list[bytes]] = defaultdict(list)
    for item in items:
        groups[divide(bucket, item, *arguments)].append(item)
    for name, group in groups.items():
        yield _BUCKET.pack(bucket) + name, group


def use_group(group: tuple[bytes, Iterable[list[bytes]]], use: Callable[..., Iterable], *arguments: Any) -> Iterable:
    """Sort a group and apply `use`; equal items, as from copies of a document, are stored once."""
    key, parts = group
    (bucket,) = _BUCKET.unpack_from(key)
    counts = Counter(chain.from_iterable(parts))
    return use(bucket, chain.from_iterable(repeat(item, counts[item]) for item in sorted(counts)), *arguments)
