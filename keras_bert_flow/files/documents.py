"""Read untrusted JSON and YAML: a value, or a one-line ValueError, however large or deep the document is."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

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


# YAML, with limits on size, depth and aliases, which bound the memory and time that a document takes.

MAX_YAML_BYTES = 1 << 20
MAX_DEPTH = 50
MAX_NODES = 20_000  # an alias counts as the nodes that it refers to
MAX_NUMBER_LENGTH = 100  # characters; anything longer is a string
_TIMESTAMP, _BOOL = "tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:bool"


def parse_yaml(text: str | bytes) -> Any:
    """Parse one YAML document into dicts, lists, strings, numbers, booleans and None.

    A date stays a string, and as in YAML 1.2 `1e6` is a number, and `yes`, `no`, `on` and `off` are strings.

    Raises:
        ValueError: not plain YAML, a key is repeated, or the document exceeds a limit; the message is one line.
    """
    if len(text) > MAX_YAML_BYTES:
        raise ValueError(f"at most {MAX_YAML_BYTES:,} bytes, not {len(text):,}")
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None
    except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError) as error:
        # PyYAML converts the value behind an explicit tag without checking it: `!!int x`, `!!bool x`.
        raise ValueError(f"a value does not fit its tag ({' '.join(str(error).split())})") from None


class _Loader(yaml.SafeLoader):
    """YAML's safe loader with limits, and an error for repeated keys."""

    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag not in (_TIMESTAMP, _BOOL)]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def __init__(self, stream):
        super().__init__(stream)
        self._depth, self._num_nodes = 0, 0
        self._sizes: dict[int, int] = {}  # nodes below each finished node, by its id

    def resolve(self, kind, value, implicit):
        if kind is yaml.ScalarNode and implicit[0] and len(value) > MAX_NUMBER_LENGTH:
            implicit = (False, True)
        return super().resolve(kind, value, implicit)

    def compose_node(self, parent, index):
        mark, before = self.peek_event().start_mark, self._num_nodes
        is_alias = self.check_event(yaml.AliasEvent)
        self._depth += 1
        self._check(self._depth <= MAX_DEPTH, f"at most {MAX_DEPTH} levels of nesting", mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if is_alias:
            self._check(id(node) in self._sizes, "no alias of what contains it", mark)
            self._num_nodes += self._sizes[id(node)]
        else:
            self._num_nodes += 1
            self._sizes[id(node)] = self._num_nodes - before
        self._check(self._num_nodes <= MAX_NODES, f"at most {MAX_NODES:,} values", mark)
        return node

    def compose_mapping_node(self, anchor):
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            name = (key.tag, key.value) if isinstance(key, yaml.ScalarNode) else id(key)
            self._check(name not in seen, f"each key once, not `{key.value}` again", key.start_mark)
            seen.add(name)
        return node

    def _check(self, holds: bool, rule: str, mark: yaml.Mark) -> None:
        if not holds:
            raise yaml.composer.ComposerError(None, None, f"a document may have {rule}", mark)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+[eE][-+]?[0-9]+$"), list("-+0123456789")
)
_Loader.add_implicit_resolver(_BOOL, re.compile(r"(true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
