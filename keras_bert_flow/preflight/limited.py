"""Stop reading a corpus after a number of bytes, even within a document."""

from collections import Counter


class EnoughError(Exception):
    """The limit of bytes to read has been exceeded."""


class LimitedCounts(Counter):
    """Counts for `read_documents` that raise EnoughError when more than `most_bytes` bytes have been read."""

    def __init__(self, most_bytes: int):
        super().__init__()
        self._most_bytes = most_bytes

    def __setitem__(self, name, value):
        super().__setitem__(name, value)
        if name == "bytes_read" and value > self._most_bytes:
            raise EnoughError
