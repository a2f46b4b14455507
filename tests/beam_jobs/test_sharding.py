import random
import shutil
from itertools import groupby
from operator import itemgetter

import apache_beam as beam
import numpy as np
import pytest

from beam_jobs.measuring import CorpusSize
from beam_jobs.pairing import HELD_OUT, TRAIN
from beam_jobs.sharding import WriteShards, choose_shards, deal_records, max_record_bytes, write_shard
from keras_bert_flow.config.records import RecordsConfig
from keras_bert_flow.records.schema import encode_records
from keras_bert_flow.records.tfrecord import TFRecordFile, frame_record
from keras_bert_flow.text.objectives.registry import find_objective
from tests.beam_jobs.conftest import as_text, build, make_corpus, make_documents, names_in, read_folder

RECORDS = [f"record {number}".encode() for number in range(200)]
NAMES = ["held_out-00000-of-00001.tfrecord", "train-00000-of-00002.tfrecord", "train-00001-of-00002.tfrecord"]


def place(records, shards=1, seed=1):
    """Deal records one by one, and return the shard of each and the one item there."""
    return [dealt for record in records for dealt in deal_records((TRAIN, [record]), shards, seed)]


def write_records(records, folder, shards=2, seed=1):
    """Write (part, record) pairs through a pipeline and return the names that it tells."""
    folder.mkdir(exist_ok=True)
    names = folder.with_name(f"{folder.name}.names")
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        batches = [(part, [record for _, record in pairs]) for part, pairs in groupby(records, key=itemgetter(0))]
        inputs = {"records": pipeline | beam.Create(batches), "shards": pipeline | "Shards" >> beam.Create([shards])}
        summaries = inputs | WriteShards(folder, seed) | beam.Map(lambda summary: summary[0])
        _ = summaries | beam.io.WriteToText(str(names), shard_name_template="")
    shutil.rmtree(folder / "records", ignore_errors=True)
    return sorted(names.read_text().split())


def test_shard_has_the_same_bytes_in_whatever_order_records_come(tmp_path):
    contents = []
    for seed in range(3):
        records = [(TRAIN, record) for record in RECORDS + RECORDS[:5]]
        random.Random(seed).shuffle(records)
        write_records(records, tmp_path / str(seed), shards=1)
        contents.append(read_folder(tmp_path / str(seed)))
    assert contents[0] == contents[1] == contents[2]
    file = TFRecordFile(tmp_path / "0" / "train-00000-of-00001.tfrecord")
    assert sorted(file) == sorted(RECORDS + RECORDS[:5])  # equal records are all kept
    assert list(file) != sorted(file)  # and the order is a random one


def test_shard_is_written_again_by_a_retry(tmp_path):
    values = [item for _, items in place(RECORDS) for item in items]
    first = list(write_shard(("a.tfrecord", values), str(tmp_path)))
    before = read_folder(tmp_path)
    assert list(write_shard(("a.tfrecord", values), str(tmp_path))) == first
    assert read_folder(tmp_path) == before
    assert names_in(tmp_path) == ["a.tfrecord", "a.tfrecord.index"]


def test_records_spread_over_shards_by_their_bytes_and_the_seed():
    shards = [shard for shard, _ in place(RECORDS, shards=4)]
    assert [shard for shard, _ in place(RECORDS[::-1], shards=4)] == shards[::-1]
    assert all(30 <= shards.count(shard) <= 70 for shard in range(4))  # 50, sigma 6.1
    assert [shard for shard, _ in place(RECORDS, shards=4, seed=2)] != shards
    batches = [number for number, items in deal_records((TRAIN, RECORDS), 4, 1) for _ in items]
    assert sorted(batches) == sorted(shards)  # together as one by one
    assert [shard for shard, _ in deal_records((HELD_OUT, [b"a", b"b"]), 4, 1)] == [4]


@pytest.mark.parametrize("records", [[], [(TRAIN, b"hot")] * 500, [(HELD_OUT, b"a"), (TRAIN, b"b")]])
def test_every_shard_is_written_even_without_records(records, tmp_path):
    folder = tmp_path / "r"
    assert write_records(records, folder) == names_in(folder) == sorted([*NAMES, *(f"{name}.index" for name in NAMES)])
    found = [(name.split("-")[0], record) for name in NAMES for record in TFRecordFile(folder / name)]
    assert sorted(found) == sorted(records)


def test_shards_are_chosen_by_the_text_and_stay_small():
    assert choose_shards(CorpusSize(10, 1000, 0), RecordsConfig(), 30522) == 4
    assert choose_shards(CorpusSize(10, 10**12, 10**12), RecordsConfig(shards=3), 30522) == 3
    for length, predictions in ((128, 20), (512, 76)):
        config = RecordsConfig(sequence_length=length, max_predictions=predictions)
        estimate = find_objective(config.objective).estimate_instances(length, config.short_fraction)
        documents = 10**6  # of 100 sentences, 10 GB of English text together
        size = CorpusSize(documents, 10**10, documents * estimate(100, 2400))
        shards = choose_shards(size, config, 30522)
        doubled = choose_shards(size._replace(instances=2 * size.instances), config, 30522)
        assert 2 * shards - 1 <= doubled <= 2 * shards
        tokens = 2400 * documents * config.duplication  # benchmarks/padding.py: 93 % of the places filled
        record_bytes = 4 * length + 7 * predictions + 150
        assert 100e6 < tokens / (0.93 * length) * record_bytes / shards < 256e6


@pytest.mark.parametrize(("length", "predictions", "pieces"), [(8, 1, 100), (128, 20, 128), (512, 76, 16385)])
def test_no_record_is_larger_than_the_size_that_shards_are_chosen_by(length, predictions, pieces):
    (record,) = encode_records(
        token_ids=np.full((1, length), pieces - 1),
        segment_ids=np.ones((1, length), np.uint8),
        lengths=np.array([length]),
        mask_positions=np.full((1, predictions), length - 1),
        mask_ids=np.full((1, predictions), pieces - 1),
        mask_counts=np.array([predictions]),
        sentence_labels=np.array([True]),
    )
    most = max_record_bytes(RecordsConfig(sequence_length=length, max_predictions=predictions), pieces)
    assert most - 100 < len(frame_record(record)) <= most


@pytest.mark.parametrize("objective", ["mlm_nsp", "mlm"])
def test_no_shard_of_short_documents_is_too_large(objective, vocabulary_file, tmp_path, monkeypatch):
    monkeypatch.setattr("beam_jobs.sharding.SHARD_BYTES", 80_000)
    sentences = [sentence for document in make_documents() for sentence in document]
    corpus = make_corpus(tmp_path / "a.txt", as_text([[sentence] for sentence in sentences]))
    settings = {"objective": objective, "sequence_length": 64, "duplication": 3, "held_out_fraction": 0}
    build(corpus, vocabulary_file, tmp_path / "r", shards=None, **settings)
    sizes = [path.stat().st_size for path in (tmp_path / "r").glob("train-*.tfrecord")]
    assert 0 < max(sizes) < 80_000
    assert len(sizes) == 4 or sum(sizes) / len(sizes) > 80_000 / 3  # nor are there many more files than it takes
