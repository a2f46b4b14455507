import json
import random

import pytest

from keras_bert_flow.console.terminal import abridge, escape_controls
from keras_bert_flow.files.documents import MAX_BYTES, MAX_VALUES, read_json, read_json_object
from keras_bert_flow.results.artifacts import file_digest
from keras_bert_flow.results.manifest import MANIFEST, check_folder, read_manifest, write_manifest

VALUES = (None, True, -1, 1e400, float("nan"), 10**30, "", "x", "../x", [], [[]], {}, {"a": []})


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "a.txt").write_text("a")
    (tmp_path / "x").write_text("a")
    write_manifest(tmp_path / "made", "records", "key", {"cased": True}, {"text": "0"}, {"documents": 1})
    return tmp_path / "made"


HOSTILE = (
    b"[" * 100_000,
    b'{"a":' * 1_000_000,
    b"9" * 6000,
    b"\xff",
    b"\0",
    b"",
    b"{",
    b'{"a": 1, "a": 1}',
    b'[{"b": {"a": 1, "c": 2, "\\u0061": 3}}]',
    "{}".encode("utf-16"),
)


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_read_json_raises_value_error(tmp_path, text):
    (tmp_path / "a.json").write_bytes(text)
    with pytest.raises(ValueError):
        read_json(tmp_path / "a.json")


def test_read_json_refuses_a_large_sparse_file(tmp_path):
    with open(tmp_path / "a.json", "wb") as file:
        file.truncate(10 << 30)
    with pytest.raises(ValueError, match=f"larger than {MAX_BYTES >> 20} MiB"):
        read_json(tmp_path / "a.json")


def test_read_json_refuses_more_values_than_memory_is_meant_for(tmp_path):
    (tmp_path / "a.json").write_bytes(b"[" + b"{}," * MAX_VALUES + b"{}]")
    with pytest.raises(ValueError, match="more than 2,000,000 values"):
        read_json(tmp_path / "a.json")


def test_repeated_key_is_named_in_a_short_message(tmp_path):
    key = "k" * 10_000
    (tmp_path / "a.json").write_text(json.dumps({key: 1})[:-1] + f', "{key}": 2}}')
    with pytest.raises(ValueError, match="has the key 'kkk.* twice") as refusal:
        read_json(tmp_path / "a.json")
    assert len(str(refusal.value)) < 300


def test_read_json_object_names_the_file(tmp_path):
    (tmp_path / "a.json").write_text("[1]")
    with pytest.raises(ValueError, match=r"a\.json, with list"):
        read_json_object(tmp_path / "a.json")


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a\\b", "a\0b", "", ".", "b//c", "out/x"])
def test_manifest_names_stay_in_the_folder(folder, name):
    (folder / "out").symlink_to(folder.parent)
    values = json.loads((folder / MANIFEST).read_text())
    values["files"] = [{"name": name, "file_bytes": 1, "sha256": file_digest(folder / "a.txt"), "records": None}]
    (folder / MANIFEST).write_text(json.dumps(values))
    with pytest.raises(ValueError, match="must name files of its folder"):
        check_folder(folder)


def mutate(value, chance: random.Random):
    """Replace one value somewhere in a JSON document."""
    if isinstance(value, dict | list) and value and chance.random() < 0.8:
        copy = value.copy()
        key = chance.choice(list(copy)) if isinstance(copy, dict) else chance.randrange(len(copy))
        copy[key] = mutate(copy[key], chance)
        return copy
    return chance.choice(VALUES)


@pytest.mark.parametrize("count", [2000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_mutated_manifests_are_read_or_refused(folder, count):
    chance, path = random.Random(0), folder / MANIFEST
    whole, refused = path.read_bytes(), 0
    unsigned = json.loads(whole)
    del unsigned["digest"]  # so that what is refused is refused by the checks of the fields
    for number in range(count):
        damaged = bytearray(whole)
        if number % 2:
            damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        else:
            damaged = json.dumps(mutate(unsigned, chance)).encode()
        path.write_bytes(damaged)
        try:
            read_manifest(folder)
            check_folder(folder)
        except (ValueError, FileNotFoundError):
            refused += 1
    assert refused > count // 4


def test_controls_are_escaped_and_letters_are_not():
    assert escape_controls("\x1b[31m é 日\n\u202e") == "\\x1b[31m é 日\\n\\u202e"
    assert len(abridge("a" * 10_000)) < 300
