"""Damage files at random, bytes of any file and values within JSON, and see what becomes of their readers."""

import json
import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ERRORS = (ValueError, FileNotFoundError)
every_count = pytest.mark.parametrize("count", [25, pytest.param(3000, marks=pytest.mark.slow)])

VALUES = (None, True, -1, 0, 1e400, float("nan"), 10**30, "", "x", "../x", [], [[]], [None], {}, {"a": []})
PIECES = (b"null", b"-1", b"1e999", b"9" * 30, b"[[", b"{", b'"', b",", b"\t", b"\n\n", b"\0", b"\xff", b"\xed\xa0\x80")


def mutate_bytes(content: bytes, chance: random.Random) -> bytes:
    """Flip bits, or cut, repeat or put in a few bytes."""
    damaged = bytearray(content)
    for _ in range(chance.choice((1, 1, 1, 3))):
        start = chance.randrange(len(damaged) + 1)
        end = min(len(damaged), start + chance.choice((1, 2, 8, 64)))
        kind = chance.randrange(5)
        if kind == 0 and start < len(damaged):
            damaged[start] ^= 1 << chance.randrange(8)
        elif kind == 1:
            del damaged[start:end]
        elif kind == 2:
            damaged[start:start] = damaged[start:end]
        elif kind == 3:
            damaged[start:end] = chance.choice(PIECES)
        elif kind == 4 and chance.random() < 0.3:
            del damaged[start:]
    return bytes(damaged)


def mutate_json(value: Any, chance: random.Random) -> Any:
    """Replace or remove one value somewhere in a JSON document."""
    if isinstance(value, dict | list) and value and chance.random() < 0.85:
        copy = value.copy()
        key = chance.choice(list(copy)) if isinstance(copy, dict) else chance.randrange(len(copy))
        if chance.random() < 0.1:
            del copy[key]
        else:
            copy[key] = mutate_json(copy[key], chance)
        return copy
    return chance.choice(VALUES)


def mutate_file(name: str, content: bytes, chance: random.Random) -> bytes:
    """Damage a file; one in JSON, or with a line of JSON each, is mostly JSON afterwards."""
    if chance.random() < 0.6:
        if name.endswith(".json"):
            return json.dumps(mutate_json(json.loads(content), chance)).encode()
        if name.endswith(".jsonl"):
            lines = content.splitlines()
            number = chance.randrange(len(lines))
            lines[number] = json.dumps(mutate_json(json.loads(lines[number]), chance)).encode()
            return b"\n".join(lines) + b"\n"
    return mutate_bytes(content, chance)


def add_case(cases: dict, *files: str) -> Callable:
    """Register a case: a function that writes files into a folder and returns what reads them all again."""
    return lambda function: cases.update({f"{function.__name__}-{file}": (function, file) for file in files})


def assert_read_or_refused(folder: Path, write: Callable, file: str, name: str, count: int) -> None:
    """Write the files of a case, and read them with one of them damaged in `count` ways, of which it refuses some."""
    read = write(folder)
    chance = random.Random(name)
    whole = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    refused = 0
    for _ in range(count):
        (folder / file).write_bytes(mutate_file(file, whole[folder / file], chance))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of numbers that are not finite
                read()
        except ERRORS as error:
            refused += 1
            assert "\n" not in str(error) and 10 < len(str(error)) < 2000, error
        for path, content in whole.items():
            path.write_bytes(content)
    assert refused
