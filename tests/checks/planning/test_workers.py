"""How many worker processes a data job gets: from the size of the text, unless its user chose."""

import gzip
import os
from pathlib import Path

import pytest

from keras_bert_flow.checks import estimates
from keras_bert_flow.checks.estimates import (
    MOST_WORKERS,
    available_memory,
    choose_workers,
    count_cores,
    text_bytes,
    worker_options,
)
from keras_bert_flow.config.text import CorpusConfig, RecordsConfig

MB = 1_000_000
PLENTY = 64e9
TWO = ("--direct_num_workers=2", "--direct_running_mode=multi_processing")


def write_sparse(path: Path, size: int) -> CorpusConfig:
    """Make a file of a size that takes no room on the disk."""
    with open(path, "wb") as file:
        file.truncate(size)
    return CorpusConfig(input=(str(path),))


@pytest.mark.parametrize(
    ("size", "duplication", "cores", "workers"),
    [
        (1 * MB, 1, 8, 1),
        (10 * MB, 1, 8, 1),
        (14 * MB, 1, 2, 1),
        (10 * MB, 5, 2, 1),
        (14 * MB, 5, 2, 2),
        (14 * MB, 5, 1, 1),
        (20 * MB, 1, 8, 2),
        (10 * MB, 40, 8, 7),
        (1000 * MB, 5, 4, 4),
        (1000 * MB, 5, 96, MOST_WORKERS),
        (14 * MB, None, 8, 1),
        (70 * MB, None, 8, 2),
        (1000 * MB, None, 2, 2),
    ],
)
def test_workers_follow_from_bytes_duplication_and_cores(size, duplication, cores, workers):
    records = None if duplication is None else RecordsConfig(duplication=duplication)
    assert choose_workers(size, records, cores, PLENTY) == workers


@pytest.mark.parametrize(("memory", "workers"), [(0, 1), (1e9, 2), (2e9, 5), (float("inf"), MOST_WORKERS)])
def test_workers_fit_the_free_memory(memory, workers):
    assert choose_workers(20e9, None, 16, memory) == workers


def test_large_text_gets_workers_and_small_text_the_options_as_they_were(tmp_path, monkeypatch):
    large, small = write_sparse(tmp_path / "large.txt", 20 * MB), write_sparse(tmp_path / "small.txt", MB)
    records = RecordsConfig(duplication=1)
    monkeypatch.setattr(estimates, "count_cores", lambda: 2)
    assert worker_options(large, records, ("--streaming",)) == ("--streaming", *TWO)
    assert worker_options(large, None, ()) == ()
    assert worker_options(small, records, ("--streaming",)) == ("--streaming",)
    monkeypatch.setattr(estimates, "count_cores", lambda: 1)
    assert worker_options(large, records, ()) == ()


@pytest.mark.parametrize(
    "chosen",
    [
        ("--direct_num_workers=1",),
        ("--direct_num_workers", "3"),
        ("--direct_running_mode=in_memory",),
        ("--runner=FnApiRunner",),
        ("--runner", "FlinkRunner"),
    ],
)
def test_choice_of_the_user_is_left_alone(chosen, tmp_path, monkeypatch):
    monkeypatch.setattr(estimates, "count_cores", lambda: 8)
    assert worker_options(write_sparse(tmp_path / "large.txt", 1000 * MB), None, chosen) == chosen


def test_text_at_another_place_is_not_measured(monkeypatch):
    monkeypatch.setattr(estimates, "count_cores", lambda: 8)
    assert worker_options(CorpusConfig(input=("gs://bucket/a.txt",)), None, ()) == ()


def test_packed_text_counts_unpacked(tmp_path):
    text = b"a text that repeats itself\n" * 100_000
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(text))
    assert text_bytes(CorpusConfig(input=(str(tmp_path),))) == pytest.approx(len(text), rel=0.2)


@pytest.mark.parametrize("name", ["a.txt.gz", "a.txt.bz2", "a.txt.xz", "a.txt.zst", "a.parquet"])
@pytest.mark.parametrize("content", [b"", b"\x1f\x8b damaged", gzip.compress(b"a text " * 1000)[:-3]])
def test_damaged_text_is_measured_without_an_error(name, content, tmp_path):
    (tmp_path / name).write_bytes(content)
    assert 0 <= text_bytes(CorpusConfig(input=(str(tmp_path / name),))) <= 7000


@pytest.mark.parametrize(("quota", "most"), [("100000 100000", 1), ("150000 100000", 1), ("50000 100000", 1)])
def test_limit_of_the_control_group_counts(quota, most, tmp_path):
    (tmp_path / "cpu.max").write_text(f"{quota}\n")
    assert count_cores(tmp_path) == most


def test_cores_are_those_of_the_affinity_without_a_limit(tmp_path):
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert count_cores(tmp_path) == count_cores(tmp_path / "missing") == len(os.sched_getaffinity(0))


def test_free_memory_is_the_least_of_machine_and_control_group(tmp_path):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 9000 kB\nMemAvailable:    2000 kB\n")
    assert available_memory(meminfo, tmp_path) == 2_048_000
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("400000\n")
    assert available_memory(meminfo, tmp_path) == 600_000
    (tmp_path / "memory.max").write_text("max\n")
    assert available_memory(meminfo, tmp_path) == 2_048_000
    assert available_memory(tmp_path / "missing", tmp_path) == float("inf")
