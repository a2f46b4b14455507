"""What the steps of a job ask of an exchange."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import apache_beam as beam

Items = tuple[int, list[bytes]]  # the number of a bucket, and some of its items


class Exchange(ABC):
    """Move data between steps so that no worker holds a collection.

    Its steps are named by the caller: names are of folders, and each is used once in a job.
    """

    @abstractmethod
    def spread(self, name: str, conditions: beam.PCollection | None = None) -> beam.PTransform:
        """Return a step that gives every element to some worker again, so that those of one file keep all busy.

        Args:
            conditions: a collection of booleans, waited for before the first element is given; none is if one is False.
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
        """Return a step that sorts the items of each bucket, and emits what `use` makes of them.

        It takes a dict of collections: `items`, of Items, and `buckets`, all the numbers of buckets, from 0 on.

        Args:
            use: takes the number of a bucket, an iterator over items of it in order, and the arguments, and yields
                results. It is called for a bucket as a whole, or for each group of `divide`, and at least once for
                every bucket, also for one without an item.
            arguments: further ones of `use` and `divide`, side inputs among them.
            divide: takes the number of a bucket, an item of it and the arguments, and returns the name of the item's
                group: a bucket may have as many items as there are, a group must fit into the memory of a worker.
            lift: a step from Items to fewer Items, for an exchange that would else send them all.
        """
