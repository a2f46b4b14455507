"""Interface of an exchange, through which packed data moves between the steps of a job."""

import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import apache_beam as beam
import zstandard  # comes with Apache Beam

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


# Pack what moves between the steps of a job: pickled and compressed, for files as for the shuffle of an engine.

_LEVEL = 1  # of zstd: records take a third of the bytes for 1 s per GB; level 3 takes 1.5 times as long for 5 % less


class Packer:
    """Pack and unpack elements; for one thread at a time, since it keeps the buffers of zstd."""

    def __init__(self) -> None:
        self._compressor = zstandard.ZstdCompressor(level=_LEVEL)
        self._decompressor = zstandard.ZstdDecompressor()

    def pack(self, element: Any) -> bytes:
        return self._compressor.compress(pickle.dumps(element, pickle.HIGHEST_PROTOCOL))

    def unpack(self, packed: bytes | memoryview) -> Any:
        return pickle.loads(self._decompressor.decompress(packed))  # written by this job


class PackingDoFn(beam.DoFn):
    """DoFn with a Packer, `self.packer`; Beam calls an instance from one thread at a time."""

    def setup(self) -> None:
        self.packer = Packer()
