"""Sorted runs and chunks in files."""

import os
import random
import shutil
import tracemalloc
from itertools import chain
from pathlib import Path

import pytest

from beam_jobs import exchange, sorted_runs
from beam_jobs.exchange import WriteChunks, WriteRuns, join_group, name_joined_run
from beam_jobs.sorted_runs import merge_runs
from tests.beam_jobs.conftest import build, make_pairs, names_in


def write_runs(folder, pairs):
    writer = WriteRuns(str(folder))
    writer.start_bundle()
    paths = [path for pair in pairs for path in writer.process(pair)]
    return [*paths, *(windowed.value for windowed in writer.finish_bundle())]


@pytest.mark.parametrize("run_bytes", [1, 10_000, 10**9])
@pytest.mark.parametrize("block_bytes", [1, 100, 10**9])
def test_sorted_files_give_every_item_in_order(run_bytes, block_bytes, tmp_path, monkeypatch):
    monkeypatch.setattr(exchange, "RUN_BYTES", run_bytes)
    monkeypatch.setattr(sorted_runs, "BLOCK_BYTES", block_bytes)
    pairs = make_pairs()
    paths = write_runs(tmp_path, pairs)
    assert len(paths) == {1: len(pairs), 10**9: 1}.get(run_bytes, len(paths)) and len(paths) == len(set(paths))
    for bucket in range(6):  # two of them without an item, one beyond the last
        expected = sorted(item for number, items in pairs if number == bucket for item in items)
        assert list(merge_runs(bucket, paths)) == expected


def test_many_runs_are_merged_into_fewer_with_every_item(tmp_path, monkeypatch):
    monkeypatch.setattr(exchange, "RUN_BYTES", 10_000)
    monkeypatch.setattr(exchange, "MOST_RUNS", 8)
    pairs = make_pairs()
    paths = write_runs(tmp_path, pairs)
    groups = {}
    for path in paths:
        groups.setdefault(name_joined_run(path, len(paths))[0], []).append(path)
    assert len(paths) > 40 and len(groups) < len(paths) / 4
    joined = [join_group(group, str(tmp_path)) for group in groups.items()]
    for bucket in range(6):
        assert list(merge_runs(bucket, joined)) == list(merge_runs(bucket, paths))
    few = paths[:8]
    assert [join_group((name, [path]), str(tmp_path)) for path, name in (name_joined_run(p, 8) for p in few)] == few


def test_merging_holds_a_part_of_a_bucket(tmp_path, monkeypatch):
    monkeypatch.setattr(sorted_runs, "_READ_BYTES", 500_000)
    rng = random.Random(0)
    paths = [
        path for _ in range(10) for path in write_runs(tmp_path, [(0, [rng.randbytes(1000)]) for _ in range(1000)])
    ]
    tracemalloc.start()
    try:
        items = sum(1 for _ in merge_runs(0, paths))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert items == 10_000
    # Two blocks of each run, as they are unpacked and as items.
    assert peak < 500_000 + 10 * 4 * sorted_runs.BLOCK_BYTES


def test_merging_takes_a_block_of_each_run_at_a_time(tmp_path):
    rng = random.Random(0)
    pairs = [(0, [rng.randbytes(1000) for _ in range(300)]) for _ in range(40)]
    paths = [path for pair in pairs for path in write_runs(tmp_path, [pair])]
    lists = list(chain.from_iterable(sorted_runs._merge_buckets(range(1), paths)))
    assert sum(map(len, lists)) == 12_000
    blocks_per_run = 300_000 / sorted_runs.BLOCK_BYTES
    assert len(lists) < 3 * blocks_per_run  # 40 times as many if each block were waited for


def test_few_large_pieces_of_a_run_are_read(tmp_path, monkeypatch):
    rng = random.Random(0)
    (path,) = write_runs(tmp_path, [(0, [rng.randbytes(1000) for _ in range(3000)])])
    lengths, read = [], sorted_runs.read_from
    monkeypatch.setattr(sorted_runs, "read_from", lambda *place: lengths.append(place[2]) or read(*place))
    assert sum(1 for _ in merge_runs(0, [path])) == 3000
    assert max(lengths) <= 500_000 and len([length for length in lengths if length > 10_000]) == 7


def test_runs_of_many_buckets_are_joined_in_few_reads(tmp_path, monkeypatch):
    monkeypatch.setattr(sorted_runs, "_BUCKETS_AT_ONCE", 100)
    rng = random.Random(0)
    pairs = [(bucket, [rng.randbytes(100)]) for bucket in range(0, 250, 2)]
    paths = [path for _ in range(3) for path in write_runs(tmp_path, pairs)]
    opened, open_again = [], sorted_runs.open_again
    monkeypatch.setattr(sorted_runs, "open_again", lambda path: opened.append(path) or open_again(path))
    joined = sorted_runs.join_runs(str(tmp_path), [*paths, *write_runs(tmp_path, [(300, [b"last"])])])
    # Of each run the number of its buckets, its index for each 100 of 301 buckets, and their blocks, where it has some.
    assert len(opened) == 3 * (1 + 4 + 3) + (1 + 4 + 1)
    assert [list(merge_runs(bucket, [joined])) for bucket in range(301)] == [
        *(sorted(pairs[bucket // 2][1] * 3) if bucket % 2 == 0 else [] for bucket in range(250)),
        *([] for _ in range(50)),
        [b"last"],
    ]


def test_without_a_run_there_are_no_items():
    assert list(merge_runs(0, [])) == []


def test_sorted_files_forget_what_a_failed_attempt_left(tmp_path):
    write_runs(tmp_path, [(0, [b"left"])])
    assert list(merge_runs(0, write_runs(tmp_path, [(0, [b"kept"])]))) == [b"kept"]


def test_sorted_files_that_were_cut_are_refused(tmp_path):
    (path,) = write_runs(tmp_path, [(0, [b"a" * 100])])
    for size in (60, 20, 0):  # in the item, in the offsets, before them
        with open(path, "r+b") as file:
            file.truncate(size)
        with pytest.raises(ValueError, match=f"{path}, which was cut"):
            list(merge_runs(0, [path]))


@pytest.mark.parametrize("writer", [WriteRuns, WriteChunks])
@pytest.mark.parametrize("harm", [pytest.param("gone", marks=pytest.mark.slow), "cut"])
def test_file_that_is_harmed_before_it_is_read_fails_the_job(
    harm, writer, corpus, vocabulary_file, tmp_path, monkeypatch
):
    harmed, write = [], writer._write

    def write_and_harm(self):
        place = write(self)
        path = Path(place if writer is WriteRuns else place[0])
        if not harmed:
            path.unlink() if harm == "gone" else os.truncate(path, path.stat().st_size - 1)
            harmed.append(path)
        return place

    monkeypatch.setattr(writer, "_write", write_and_harm)
    with pytest.raises(ValueError, match=f"Received: .*, which (is|was) {harm}") as caught:
        build(corpus, vocabulary_file, tmp_path / "out" / "r")
    assert harmed[0].name in str(caught.value) and "\n" not in str(caught.value)
    assert names_in(tmp_path / "out") == []


def test_writers_fail_where_the_folder_of_their_job_is_gone(tmp_path):
    shutil.rmtree(tmp_path)
    with pytest.raises(FileNotFoundError):
        write_runs(tmp_path / "runs", [(0, [b"late"])])
