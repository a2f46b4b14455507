"""Read untrusted JSON: a value, or a one-line ValueError, however large or deep the document is."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from keras_bert_flow.console.terminal import abridge

MAX_BYTES = 64 << 20  # of a whole document; the manifest of 100,000 files takes a quarter of it
MAX_VALUES = 2_000_000  # of a document that `read_json` reads: at most some 300 MB in memory
_BEFORE_VALUES = (",", "[", "{")
Read = Callable[[Path, int], bytes]  # path, limit → at most so many bytes of the file; -1: all


def read_file(path: str | Path, limit: int = -1) -> bytes:
    """Return the first bytes of a file, at most `limit`; -1: all."""
    with open(path, "rb") as file:
        return file.read(limit)


def parse_json(text: str | bytes) -> Any:
    """Parse a JSON document.

    Raises:
        ValueError: not JSON, not UTF-8, nested too deeply, an object with a repeated key, or a number with thousands
            of digits.
    """
    try:
        return json.loads(text.decode("utf-8") if isinstance(text, bytes) else text, object_pairs_hook=_make_object)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_json(path: str | Path, read: Read = read_file) -> Any:
    """Read a JSON document in UTF-8.

    Args:
        read: returns the content of a file; such as `OpenedFiles.read`, which opens it once.
    Raises:
        OSError: the file cannot be read.
        ValueError: as for `parse_json`, or the file is larger than `MAX_BYTES` or may hold more than `MAX_VALUES`.
    """
    content = read(Path(path), MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError(f"it is larger than {MAX_BYTES >> 20} MiB")
    text = content.decode("utf-8")
    if sum(map(text.count, _BEFORE_VALUES)) > MAX_VALUES:
        raise ValueError(f"it holds more than {MAX_VALUES:,} values")
    return parse_json(text)


def read_json_object(path: str | Path, read: Read = read_file) -> dict[str, Any]:
    """Read a JSON object from a file; raises OSError, or a ValueError that names the file."""
    try:
        values = read_json(path, read)
    except ValueError as error:
        raise ValueError(f"A file must be whole JSON. Received: {path}: {error}. Copy or make it again.") from None
    if not isinstance(values, dict):
        raise ValueError(
            f"A file must hold a JSON object. Received: {path}, with {type(values).__name__}. Copy or make it again."
        )
    return values


def _make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"an object has the key {abridge(ascii(key))} twice")
            seen.add(key)
    return values
