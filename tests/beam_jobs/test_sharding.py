import random
import shutil
from itertools import groupby
from operator import itemgetter

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from beam_jobs.build_records import (
    ShardPlan,
    WriteShards,
    deal_records,
    find_part,
    join_parts,
    max_record_bytes,
    plan_shards,
    write_part,
)
from beam_jobs.exchange import choose_exchange
from beam_jobs.instances import HELD_OUT, TRAIN, CorpusSize
from keras_bert_flow.config.text import RecordsConfig
from keras_bert_flow.records.example import encode_records
from keras_bert_flow.records.tfrecord import TFRecordFile, frame_record
from keras_bert_flow.text.objectives.objective import find_objective
from tests.beam_jobs.conftest import as_text, build, make_corpus, make_documents, names_in, read_folder

RECORDS = [f"record {number}".encode() for number in range(200)]
NAMES = ["held_out-00000-of-00001.tfrecord", "train-00000-of-00002.tfrecord", "train-00001-of-00002.tfrecord"]


def place(records, shards=1, seed=1):
    """Deal records one by one, and return the shard of each and the one item there."""
    plan = ShardPlan(shards, 1, 1)
    return [dealt for record in records for dealt in deal_records((TRAIN, [record]), plan, seed)]


def write_records(records, folder, shards=2, seed=1, exchange="files", parts=1, repeat=0):
    """Write (part, record) pairs through a pipeline and return the names that it tells."""
    folder.mkdir(exist_ok=True)
    names = folder.with_name(f"{folder.name}.names")
    options = PipelineOptions([f"--direct_runner_bundle_repeat={repeat}"])
    with beam.Pipeline(runner="FnApiRunner", options=options) as pipeline:
        batches = [(part, [record for _, record in pairs]) for part, pairs in groupby(records, key=itemgetter(0))]
        plan = pipeline | "Plan" >> beam.Create([ShardPlan(shards, parts, parts)])
        write = WriteShards(str(folder), seed, choose_exchange([f"--exchange={exchange}"], folder))
        inputs = {"records": pipeline | beam.Create(batches), "plan": plan}
        summaries = inputs | write | beam.Map(lambda summary: summary[0])
        _ = summaries | beam.io.WriteToText(str(names), shard_name_template="")
    for way in ("records", "attempts"):
        shutil.rmtree(folder / way, ignore_errors=True)
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


@pytest.mark.parametrize("parts", [1, 3])
def test_shard_is_written_again_by_a_retry(parts, tmp_path):
    plan, folder = ShardPlan(1, parts, 1), str(tmp_path)
    groups = [[] for _ in range(parts)]
    for item in sorted(item for _, items in place(RECORDS) for item in items):
        groups[int.from_bytes(find_part(0, item, plan, folder), "big")].append(item)
    written = [[pair[1] for pair in write_part(0, iter(group), plan, folder)] for group in groups for _ in range(2)]
    once, again = ([part for parts in written[first::2] for part in parts] for first in (0, 1))
    first = list(join_parts((0, once), plan, folder))
    before = {name: (tmp_path / name).read_bytes() for name in [summary[0] for summary in first]}
    for tried in (once, again[::-1]):
        assert list(join_parts((0, tried), plan, folder)) == first
        assert {name: (tmp_path / name).read_bytes() for name in before} == before
    name = "train-00000-of-00001.tfrecord"
    assert names_in(tmp_path) == ["attempts", name, f"{name}.index"]
    assert len(TFRecordFile(tmp_path / name)) == len(RECORDS)


@pytest.mark.first_form
@pytest.mark.parametrize("repeat", [0, 1])
@pytest.mark.parametrize("parts", [1, 4])
def test_shards_have_the_same_bytes_from_the_engine_in_parts(parts, repeat, tmp_path):
    records = [(TRAIN, record) for record in RECORDS] + [(HELD_OUT, record) for record in RECORDS[:50]] * 2
    write_records(records, tmp_path / "files")
    write_records(records[::-1], tmp_path / "engine", exchange="engine", parts=parts, repeat=repeat)
    assert read_folder(tmp_path / "engine") == read_folder(tmp_path / "files")


def test_parts_of_a_shard_fit_into_memory():
    config, size = RecordsConfig(shards=2, held_out_fraction=0.1), CorpusSize(10**6, 10**10, 10**10)
    plan = plan_shards(size, config, 30522)
    record_bytes = max_record_bytes(config, 30522)
    assert plan.shards == 2
    assert 0.9 * 64e6 < 10**7 * config.duplication / 2 * record_bytes / plan.parts <= 64e6
    assert 0.9 * 64e6 < 10**7 * 0.1 * record_bytes / plan.held_out_parts <= 64e6
    assert plan_shards(CorpusSize(0, 0, 0), RecordsConfig(held_out_fraction=0), 100) == ShardPlan(4, 1, 1)
    numbers = [int.from_bytes(find_part(0, item, ShardPlan(1, 5, 2), ""), "big") for item in sorted(RECORDS)]
    assert numbers == sorted(numbers)


def test_records_spread_over_shards_by_their_bytes_and_the_seed():
    shards = [shard for shard, _ in place(RECORDS, shards=4)]
    assert [shard for shard, _ in place(RECORDS[::-1], shards=4)] == shards[::-1]
    assert all(30 <= shards.count(shard) <= 70 for shard in range(4))  # 50, sigma 6.1
    assert [shard for shard, _ in place(RECORDS, shards=4, seed=2)] != shards
    batches = [number for number, items in deal_records((TRAIN, RECORDS), ShardPlan(4, 1, 1), 1) for _ in items]
    assert sorted(batches) == sorted(shards)  # together as one by one
    assert [shard for shard, _ in deal_records((HELD_OUT, [b"a", b"b"]), ShardPlan(4, 1, 1), 1)] == [4]


@pytest.mark.parametrize("exchange", ["files", "engine"])
@pytest.mark.parametrize("records", [[], [(TRAIN, b"hot")] * 500, [(HELD_OUT, b"a"), (TRAIN, b"b")]])
def test_every_shard_is_written_even_without_records(records, exchange, tmp_path):
    folder = tmp_path / "r"
    assert (
        write_records(records, folder, exchange=exchange)
        == names_in(folder)
        == sorted([*NAMES, *(f"{name}.index" for name in NAMES)])
    )
    found = [(name.split("-")[0], record) for name in NAMES for record in TFRecordFile(folder / name)]
    assert sorted(found) == sorted(records)


def test_shards_are_chosen_by_the_text_and_stay_small():
    assert plan_shards(CorpusSize(10, 1000, 0), RecordsConfig(), 30522).shards == 4
    assert plan_shards(CorpusSize(10, 10**12, 10**12), RecordsConfig(shards=3), 30522).shards == 3
    for length, predictions in ((128, 20), (512, 76)):
        config = RecordsConfig(sequence_length=length, max_predictions=predictions)
        estimate = find_objective(config.objective).estimate_instances(length, config.short_fraction)
        documents = 10**6  # of 100 sentences, 10 GB of English text together
        size = CorpusSize(documents, 10**10, documents * estimate(100, 2400))
        shards = plan_shards(size, config, 30522).shards
        doubled = plan_shards(size._replace(instances=2 * size.instances), config, 30522).shards
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


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["mlm_nsp", "mlm"])
@pytest.mark.first_form
def test_no_shard_of_short_documents_is_too_large(objective, vocabulary_file, tmp_path, monkeypatch):
    monkeypatch.setattr("beam_jobs.build_records.SHARD_BYTES", 80_000)
    sentences = [sentence for document in make_documents() for sentence in document]
    corpus = make_corpus(tmp_path / "a.txt", as_text([[sentence] for sentence in sentences]))
    settings = {"objective": objective, "sequence_length": 64, "duplication": 3, "held_out_fraction": 0}
    build(corpus, vocabulary_file, tmp_path / "r", shards=None, **settings)
    sizes = [path.stat().st_size for path in (tmp_path / "r").glob("train-*.tfrecord")]
    assert 0 < max(sizes) < 80_000
    assert len(sizes) == 4 or sum(sizes) / len(sizes) > 80_000 / 3  # nor are there many more files than it takes
