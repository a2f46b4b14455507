"""Stop a reader of a corpus at a number of bytes, also within a document."""

from collections import Counter


class EnoughError(Exception):
    """As much was read as may be."""


class LimitedCounts(Counter):
    """Counts for `read_documents`, which raises EnoughError when more than `most_bytes` were read."""

    def __init__(self, most_bytes: int):
        super().__init__()
        self._most_bytes = most_bytes

    def __setitem__(self, name, value):
        super().__setitem__(name, value)
        if name == "bytes_read" and value > self._most_bytes:
            raise EnoughError
