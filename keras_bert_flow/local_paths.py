"""Refuse paths at other places, such as gs://bucket/x, where only this machine's disks are reached."""

import re
from pathlib import Path

# A scheme of RFC 3986; `Path("gs://bucket/x")` is `gs:/bucket/x`, which would be a folder `gs:` here.
_ELSEWHERE = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*:)(?:/+|$)")


def find_address(path: str | Path) -> str | None:
    """Return the address of a path at another place, such as gs://bucket/x; None of one on this machine's disks."""
    if match := _ELSEWHERE.match(str(path)):
        return f"{match[1]}//{str(path)[match.end() :]}"
    return None


def name_path(path: str | Path) -> str:
    """Return a path as it is given: with both slashes of its scheme where it is at another place."""
    return find_address(path) or str(Path(path))


def check_result_place(address: str) -> None:
    """Raise ValueError for an address at which no result is published.

    HDFS shows a file before it is whole, and Beam and fsspec take the same address for different paths of it.
    """
    if address.lower().startswith("hdfs:"):
        raise ValueError(
            f"A result must be on a disk or at s3:// or gs://. Received: {address}. Make it on a disk that the workers "
            "share, and copy it with hdfs dfs -put."
        )


def check_local(path: str | Path, name: str = "The output") -> Path:
    """Return a path on the disks of this machine.

    Args:
        path: as a user gave it.
        name: what it is, to begin the message with.
    Raises:
        ValueError: it begins with a scheme, such as gs://, s3://, hdfs:// or file://.
    """
    if given := find_address(path):
        raise ValueError(
            f"{name} must be on a local disk, unlike text, records, models and what is made of them. "
            f"Received: {given}. Give a path without a scheme, and copy the files."
        )
    return Path(path)
