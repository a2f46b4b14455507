"""No file of a task fills the memory of its reader: long lines, whole files and gzip bombs end in one line."""

import bz2
import gzip
import json
import lzma
import os
import resource
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
import zstandard

from keras_bert_flow.tasks.formats import rows
from keras_bert_flow.tasks.formats.rows import ANY_PACKING, MAX_LINE_BYTES, read_byte_lines, read_whole
from keras_bert_flow.tasks.registry import make_task
from tests.patience import PATIENCE_SECONDS


def write_bomb(path, line: bytes, count: int) -> None:
    """Write gzip of one line repeated, some 1,000 times as large unpacked."""
    packer = zlib.compressobj(wbits=31)
    with open(path, "wb") as file:
        for _ in range(count // 1000):
            file.write(packer.compress(line * 1000))
        file.write(packer.flush())


def test_lines_are_those_of_python(tmp_path):
    content = b"a\r\nb\n\nc\xff\n\x85d"
    (tmp_path / "a.txt").write_bytes(content)
    (tmp_path / "a.gz").write_bytes(gzip.compress(content[:3]) + gzip.compress(content[3:]))
    expected = [b"a\r\n", b"b\n", b"\n", b"c\xff\n", b"\x85d"]
    for name in ("a.txt", "a.gz"):
        assert list(read_byte_lines(str(tmp_path / name))) == expected
        assert read_whole(str(tmp_path / name)) == content


def test_lines_of_any_packing_are_read_where_it_is_allowed(tmp_path):
    packed = {".bz2": bz2.compress(b"a\nb"), ".xz": lzma.compress(b"a\nb")}
    packed[".zst"] = zstandard.ZstdCompressor().compress(b"a\nb")
    for suffix, content in packed.items():
        path = tmp_path / f"a.txt{suffix}"
        path.write_bytes(content)
        assert list(read_byte_lines(str(path), ANY_PACKING)) == [b"a\n", b"b"]
        assert b"".join(read_byte_lines(str(path))) == content  # unpacked only where that is asked for


def test_line_of_the_limit_is_read_and_a_longer_one_is_refused(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_bytes(b"a\n" + b"b" * (MAX_LINE_BYTES - 1) + b"\nc\n")
    assert [len(line) for line in read_byte_lines(str(path))] == [2, MAX_LINE_BYTES, 2]
    path.write_bytes(b"a\n" + b"b" * MAX_LINE_BYTES + b"\n")
    with pytest.raises(ValueError, match=r"a\.tsv, row 2: a row must have at most 16 MiB"):
        list(read_byte_lines(str(path)))


@pytest.mark.parametrize("name", ["a.tsv", "a.csv", "a.jsonl", "a.conll", "a.tsv.gz"])
def test_sparse_tables_are_refused(tmp_path, name):
    path = tmp_path / name
    if name.endswith(".gz"):
        write_bomb(path, b"x" * 1000, 30_000)  # 30 MB without a line end
    else:
        with open(path, "wb") as file:
            file.truncate(10 << 30)
    kind = "token_classification" if "conll" in name else "classification"
    with pytest.raises(ValueError, match=r"row 1: (a row must have at most 16 MiB|a table must not hold NUL)"):
        make_task(kind).read(path)


def test_whole_files_have_a_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(rows, "MAX_FILE_BYTES", 4 << 20)
    with open(tmp_path / "a.json", "wb") as file:
        file.truncate(10 << 30)
    with pytest.raises(ValueError, match="at most 4 MiB"):
        make_task("question_answering").read(tmp_path / "a.json")


@pytest.mark.parametrize("name", [pytest.param("a.tsv.gz", marks=pytest.mark.slow), "a.json.gz"])
def test_gzip_bombs_take_little_memory(tmp_path, name):
    """150 MB of lines in less than 1 MB, each of which would stay in memory as an example."""
    line = b"text\tlabel\t" + b"a" * 75 + b"\n"
    write_bomb(tmp_path / name, line if "tsv" in name else b"[" + b" " * 86, 1_725_000)
    assert (tmp_path / name).stat().st_size < 1 << 20
    code = (
        "import resource, sys\n"
        "from keras_bert_flow.tasks.registry import make_task\n"
        "task = make_task(sys.argv[2])\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try: task.read(sys.argv[1])\n"
        "except ValueError as error: print(error)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    kind = "classification" if "tsv" in name else "question_answering"
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / name, kind],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    refusal, grown = done.stdout.splitlines()
    assert "must decompress to at most 100 times its size" in refusal, done.stderr
    assert int(grown) < 1 << 18  # KiB; examples are some 5 times as large as such lines


@pytest.mark.parametrize("depth", [100_000, 1_000_000])
@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
def test_deep_nesting_is_refused(tmp_path, name, depth):
    (tmp_path / name).write_text('{"data":' + "[" * depth + "]" * depth + "}")
    with pytest.raises(ValueError, match="must be JSON|one JSON object"):
        make_task("question_answering").read(tmp_path / name)


@pytest.mark.parametrize("kind", ["classification", "question_answering"])
def test_repeated_keys_are_refused(tmp_path, kind):
    name = "a.jsonl" if kind == "classification" else "a.json"
    (tmp_path / name).write_text('{"text": "a", "label": "x", "data": [], "text": "b"}\n')
    with pytest.raises(ValueError, match="one JSON object|key 'text' twice"):
        make_task(kind).read(tmp_path / name)


@pytest.mark.slow
def test_fields_of_100_mb_are_refused(tmp_path):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    (tmp_path / "a.tsv").write_bytes(b"text\tlabel\n" + b"a " * (50 << 20) + b"\tno\n")
    (tmp_path / "a.csv").write_bytes(b'text,label\n"' + b"a\n" * (50 << 20) + b'",no\n')
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "a" * (20 << 20), "label": "no"}) + "\n")
    for name, words in {"a.tsv": "16 MiB", "a.csv": "at most 16 Mi characters", "a.jsonl": "16 MiB"}.items():
        with pytest.raises(ValueError, match=words):
            make_task("classification").read(tmp_path / name)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500 << 10  # KiB, the test's own texts included
