import os
import random
import shutil
import tracemalloc
from collections import defaultdict
from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.testing.util import assert_that, equal_to

from beam_jobs import spilling
from beam_jobs.spilling import SortThroughFiles, SpreadThroughFiles, WriteChunks, WriteRuns, merge_runs
from tests.beam_jobs.conftest import build, names_in

REPLAYED = ["--direct_runner_bundle_repeat=2"]


def make_pairs():
    rng = random.Random(0)
    return [
        (rng.choice((0, 1, 4)), [rng.randbytes(rng.choice((0, 1, 30, 3000))) for _ in range(rng.choice((1, 1, 3)))])
        for _ in range(300)
    ] * 2


def write_runs(folder, pairs):
    writer = WriteRuns(str(folder))
    writer.start_bundle()
    paths = [path for pair in pairs for path in writer.process(pair)]
    return [*paths, *(windowed.value for windowed in writer.finish_bundle())]


@pytest.mark.parametrize("run_bytes", [1, 10_000, 10**9])
@pytest.mark.parametrize("merge_bytes", [1, 10**9])
def test_sorted_files_give_every_item_in_order(run_bytes, merge_bytes, tmp_path, monkeypatch):
    monkeypatch.setattr(spilling, "RUN_BYTES", run_bytes)
    monkeypatch.setattr(spilling, "_MERGE_BYTES", merge_bytes)
    pairs = make_pairs()
    runs = write_runs(tmp_path, pairs)
    assert len(runs) == {1: len(pairs), 10**9: 1}.get(run_bytes, len(runs)) and len(runs) == len(set(runs))
    for bucket in range(6):  # two of them without an item, one beyond the last
        expected = sorted(item for number, items in pairs if number == bucket for item in items)
        assert list(merge_runs(bucket, runs)) == expected


def test_merging_holds_a_part_of_a_bucket(tmp_path, monkeypatch):
    monkeypatch.setattr(spilling, "_MERGE_BYTES", 500_000)
    rng = random.Random(0)
    runs = [path for _ in range(10) for path in write_runs(tmp_path, [(0, [rng.randbytes(1000)]) for _ in range(1000)])]
    tracemalloc.start()
    try:
        items = sum(1 for _ in merge_runs(0, runs))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert items == 10_000
    assert peak < 3_000_000  # of 10 MB; a block of each run, and while it is read the one before it


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
@pytest.mark.parametrize("harm", ["gone", "cut"])
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


@pytest.mark.parametrize("options", [[], REPLAYED], ids=["once", "replayed"])
def test_sorting_gives_every_bucket_once_through_a_pipeline(options, tmp_path):
    expected = defaultdict(list)
    for bucket, items in make_pairs():
        expected[bucket] += items
    with beam.Pipeline(runner="FnApiRunner", options=beam.pipeline.PipelineOptions(options)) as pipeline:
        inputs = {"items": pipeline | beam.Create(make_pairs()), "buckets": pipeline | "B" >> beam.Create(range(6))}
        found = inputs | SortThroughFiles(tmp_path / "runs", lambda bucket, items: [(bucket, list(items))])
        assert_that(found, equal_to([(bucket, sorted(expected[bucket])) for bucket in range(6)]))


@pytest.mark.parametrize("options", [[], REPLAYED], ids=["once", "replayed"])
@pytest.mark.parametrize("chunk_bytes", [1, 500, 10**9])
def test_spreading_gives_every_item_once(options, chunk_bytes, tmp_path, monkeypatch):
    monkeypatch.setattr(spilling, "CHUNK_BYTES", chunk_bytes)
    items = [(number, "é" * number) for number in range(100)]
    with beam.Pipeline(runner="FnApiRunner", options=beam.pipeline.PipelineOptions(options)) as pipeline:
        assert_that(pipeline | beam.Create(items) | SpreadThroughFiles(tmp_path / "chunks"), equal_to(items))
