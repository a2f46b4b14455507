"""Both ways for data to move give the same: items in order, elements once, and the bytes of a job."""

import tracemalloc
from collections import defaultdict
from itertools import chain

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.util import assert_that, equal_to

from beam_jobs import exchange as exchanges
from beam_jobs.build_vocabulary import build_vocabulary
from beam_jobs.exchange import DivideItems, EngineExchange, FileExchange, UseGroup, choose_exchange
from beam_jobs.sorted_runs import Packer
from keras_bert_flow.config.text import VocabularyConfig
from tests.beam_jobs.conftest import build, make_pairs, read_folder

REPLAYED = ["--direct_runner_bundle_repeat=2"]
ENGINE = ["--exchange=engine"]


def start_pipeline(options):
    return beam.Pipeline(runner="FnApiRunner", options=PipelineOptions(options))


@pytest.mark.first_form
@pytest.mark.parametrize("most_runs", [pytest.param(exchanges.MOST_RUNS, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize(
    "options", [pytest.param([], marks=pytest.mark.slow, id="once"), pytest.param(REPLAYED, id="replayed")]
)
def test_sorting_gives_every_item_of_a_bucket_in_order(options, most_runs, exchange, monkeypatch):
    monkeypatch.setattr(exchanges, "RUN_BYTES", 10_000)
    monkeypatch.setattr(exchanges, "MOST_RUNS", most_runs)
    expected = defaultdict(list)
    for bucket, items in make_pairs():
        expected[bucket] += items
    with start_pipeline(options) as pipeline:
        inputs = {"items": pipeline | beam.Create(make_pairs()), "buckets": pipeline | "B" >> beam.Create(range(6))}
        more = beam.pvalue.AsSingleton(pipeline | "More" >> beam.Create(["given"]))
        sort = exchange.sort(
            "runs",
            lambda bucket, items, more: [(bucket, more, item) for item in items],
            more,
            divide=lambda bucket, item, more: item[:1],
        )
        found = inputs | sort | beam.Map(lambda result: (result[0], result)) | beam.GroupByKey()
        ordered = found | beam.MapTuple(lambda bucket, results: (bucket, is_in_order(results), sorted(results)))
        assert_that(
            ordered,
            equal_to([(bucket, True, sorted((bucket, "given", i) for i in expected[bucket])) for bucket in (0, 1, 4)]),
        )


def is_in_order(results):
    """Tell whether the items of each group come in order; groups come in any."""
    groups = defaultdict(list)
    for result in results:
        groups[result[2][:1]].append(result[2])
    return all(group == sorted(group) for group in groups.values())


def test_every_bucket_is_used_even_without_an_item(exchange):
    with start_pipeline([]) as pipeline:
        items = pipeline | beam.Create([(1, [b"a"])])
        inputs = {"items": items, "buckets": pipeline | "B" >> beam.Create(range(3))}
        use = exchange.sort("runs", lambda bucket, items: [bucket], divide=lambda bucket, item: item)
        assert_that(inputs | use | beam.Distinct(), equal_to([0, 1, 2]))


@pytest.mark.first_form
@pytest.mark.parametrize("options", [[], REPLAYED], ids=["once", "replayed"])
@pytest.mark.parametrize("chunk_bytes", [1, 500, 10**9])
def test_spreading_gives_every_item_once(options, chunk_bytes, exchange, monkeypatch):
    monkeypatch.setattr(exchanges, "CHUNK_BYTES", chunk_bytes)
    items = [(number, "é" * number) for number in range(100)]
    with start_pipeline(options) as pipeline:
        assert_that(pipeline | beam.Create(items) | exchange.spread("chunks"), equal_to(items))


@pytest.mark.parametrize(("conditions", "expected"), [([], [1, 2]), ([True, True], [1, 2]), ([True, False], [])])
def test_nothing_is_spread_unless_all_conditions_hold(conditions, expected, exchange):
    with start_pipeline([]) as pipeline:
        awaited = pipeline | "Conditions" >> beam.Create(conditions, reshuffle=False)
        assert_that(pipeline | beam.Create([1, 2]) | exchange.spread("chunks", awaited), equal_to(expected))


def test_engine_holds_equal_items_once():
    item = bytes(1_000_000)
    tracemalloc.start()
    step, packer = UseGroup(lambda _, items: items), Packer()
    step.setup()
    found = sum(1 for _ in step.process((bytes(8), (packer.pack([item]) for _ in range(50)))))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found == 50
    assert peak < 5 * len(item)


def test_engine_is_handed_few_elements_and_few_bytes():
    step, packer = DivideItems(lambda bucket, item: item[:1]), Packer()
    step.setup()
    step.start_bundle()
    items = [b"%d of the records of this job, which are much alike" % number for number in range(10_000)]
    assert [*chain.from_iterable(step.process((0, items[at : at + 10])) for at in range(0, 10_000, 10))] == []
    elements = [element.value for element in step.finish_bundle()]
    assert len(elements) == 10  # one for each first digit
    assert sorted(chain.from_iterable(packer.unpack(packed) for _, packed in elements)) == sorted(items)
    assert sum(len(packed) for _, packed in elements) < sum(map(len, items)) / 4
    assert [*step.finish_bundle()] == []


def test_engine_is_handed_a_batch_once_it_is_full(monkeypatch):
    monkeypatch.setattr(exchanges, "BATCH_BYTES", 5_000)
    step = DivideItems(lambda bucket, item: b"")
    step.setup()
    step.start_bundle()
    sizes = [len([*step.process((0, [bytes(1_000)]))]) for _ in range(10)]
    assert sizes == [0, 0, 0, 0, 1, 0, 0, 0, 0, 1]  # 1,060 bytes each in memory


@pytest.mark.parametrize(
    "objective", ["mlm_nsp", *(pytest.param(name, marks=pytest.mark.slow) for name in ("mlm", "mlm_sop", "rtd"))]
)
@pytest.mark.parametrize(
    "options", [pytest.param([], id="once"), pytest.param(REPLAYED, marks=pytest.mark.slow, id="replayed")]
)
def test_records_have_the_same_bytes_from_the_engine(
    options, objective, corpus, vocabulary_file, tmp_path, monkeypatch
):
    expected = read_folder(build(corpus, vocabulary_file, tmp_path / "files", objective=objective))
    monkeypatch.setattr("beam_jobs.build_records.PART_BYTES", 20_000)  # several parts a shard
    monkeypatch.delattr("beam_jobs.exchange.write_run")
    found = build(corpus, vocabulary_file, tmp_path / "engine", objective=objective, options=[*ENGINE, *options])
    assert read_folder(found) == expected


@pytest.mark.slow
def test_vocabulary_has_the_same_bytes_from_the_engine(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr("beam_jobs.build_vocabulary.MAX_COUNTED", 50)  # so that a word is in many tables
    vocabulary = VocabularyConfig(size=200)
    expected = read_folder(build_vocabulary(corpus, vocabulary, tmp_path / "files"))
    found = build_vocabulary(corpus, vocabulary, tmp_path / "engine", [*ENGINE, *REPLAYED])
    assert read_folder(found) == expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], FileExchange),
        (["--runner=DirectRunner"], FileExchange),
        (["--runner=apache_beam.runners.direct.direct_runner.BundleBasedDirectRunner"], FileExchange),
        (ENGINE, EngineExchange),
        (["--runner=PortableRunner"], EngineExchange),
        (["--runner=FlinkRunner"], EngineExchange),
        (["--runner=SparkRunner", "--exchange=files"], FileExchange),
    ],
)
def test_the_exchange_follows_from_the_runner(options, expected, tmp_path):
    assert type(choose_exchange(options, tmp_path)) is expected


def test_another_exchange_is_refused_before_the_job(corpus, vocabulary_file, tmp_path):
    with pytest.raises(ValueError, match="argument --exchange: invalid choice: 'disk'"):
        build(corpus, vocabulary_file, tmp_path / "r", options=["--exchange=disk"])
