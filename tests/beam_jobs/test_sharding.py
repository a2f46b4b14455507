import random

import apache_beam as beam
import pytest
from apache_beam.testing.util import assert_that, equal_to

from beam_jobs.pairing import HELD_OUT, TRAIN
from beam_jobs.sharding import WriteShards, choose_shards, write_shard
from keras_bert_flow.records.tfrecord import TFRecordFile
from tests.beam_jobs.conftest import names_in, read_folder

RECORDS = [f"record {number}".encode() for number in range(200)]
NAMES = ["held_out-00000-of-00001.tfrecord", "train-00000-of-00002.tfrecord", "train-00001-of-00002.tfrecord"]


def place(records, shards=1, seed=1):
    return [dealt for record in records for dealt in choose_shards((TRAIN, [record]), {TRAIN: shards}, seed)]


def test_shard_has_the_same_bytes_in_whatever_order_records_come(tmp_path):
    contents = []
    for seed in range(3):
        values = [[], *(value for _, value in place(RECORDS + RECORDS[:5]))]
        random.Random(seed).shuffle(values)
        folder = tmp_path / str(seed)
        folder.mkdir()
        assert [name for name, *_ in write_shard(("a.tfrecord", values), str(folder))] == [
            "a.tfrecord",
            "a.tfrecord.index",
        ]
        contents.append(read_folder(folder))
    assert contents[0] == contents[1] == contents[2]
    assert contents[0].keys() == {"a.tfrecord", "a.tfrecord.index"}
    file = TFRecordFile(tmp_path / "0" / "a.tfrecord")
    assert sorted(file) == sorted(RECORDS + RECORDS[:5])  # equal records are all kept
    assert list(file) != sorted(file)  # and the order is a random one


def test_shard_is_written_again_by_a_retry(tmp_path):
    values = [value for _, value in place(RECORDS)]
    first = list(write_shard(("a.tfrecord", values), str(tmp_path)))
    before = read_folder(tmp_path)
    assert list(write_shard(("a.tfrecord", values), str(tmp_path))) == first
    assert read_folder(tmp_path) == before
    assert names_in(tmp_path) == ["a.tfrecord", "a.tfrecord.index"]


def test_records_spread_over_shards_by_their_bytes_and_the_seed():
    names = [name for name, _ in place(RECORDS, shards=4)]
    assert [name for name, _ in place(RECORDS[::-1], shards=4)] == names[::-1]
    assert all(30 <= names.count(f"train-{shard:05d}-of-00004.tfrecord") <= 70 for shard in range(4))  # 50, sigma 6.1
    assert [name for name, _ in place(RECORDS, shards=4, seed=2)] != names


@pytest.mark.parametrize("records", [[], [(TRAIN, b"hot")] * 500, [(HELD_OUT, b"a"), (TRAIN, b"b")]])
def test_every_shard_is_written_even_without_records(records, tmp_path):
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        batches = [(part, [record]) for part, record in records]
        summaries = pipeline | beam.Create(batches) | WriteShards(tmp_path, 2, 1) | beam.Map(lambda summary: summary[0])
        assert_that(summaries, equal_to([*NAMES, *(f"{name}.index" for name in NAMES)]))
    found = [(name.split("-")[0], record) for name in NAMES for record in TFRecordFile(tmp_path / name)]
    assert sorted(found) == sorted(records)
    assert names_in(tmp_path) == sorted([*NAMES, *(f"{name}.index" for name in NAMES)])
