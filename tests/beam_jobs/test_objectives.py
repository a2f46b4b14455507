"""Records of every objective: the same bytes from any workers, counted to the last position, packed without loss."""

import os
from collections import Counter

import numpy as np
import pytest

import keras_bert_flow as kbf
from beam_jobs.build_records import build_records
from keras_bert_flow.checks.diagnose import examine_records
from keras_bert_flow.checks.record_counts import FAULTS, RecordCounts, make_layout
from keras_bert_flow.config.text import CorpusConfig, RecordsConfig
from keras_bert_flow.data.order import restore_tokens
from keras_bert_flow.records.tfrecord import TFRecordFile
from keras_bert_flow.results.manifest import read_manifest
from tests.beam_jobs.conftest import as_text, build, make_corpus, make_documents, make_records_config, read_folder
from tests.beam_jobs.portable import portable_job_service, run_job
from tests.beam_jobs.test_build_records import documents_in, read_part, tokenizer_of

DATA = os.environ.get("KBF_TEST_DATA")
OBJECTIVES = ("mlm_nsp", "mlm", "mlm_sop", "mlm_sbo")
PARTS = ("train", "held_out")


@pytest.fixture(params=OBJECTIVES)
def objective(request):
    return request.param


@pytest.fixture(
    params=["mlm", *(pytest.param(name, marks=pytest.mark.slow) for name in ("mlm_nsp", "mlm_sop", "mlm_sbo"))]
)
def one_objective(request):
    """Return one of them, and of the slow tests each."""
    return request.param


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 4])
def test_objectives_have_the_same_bytes_with_several_workers(workers, one_objective, corpus, vocabulary_file, tmp_path):
    one = build(corpus, vocabulary_file, tmp_path / "one", objective=one_objective)
    options = [f"--direct_num_workers={workers}", "--direct_running_mode=multi_processing"]
    run_job(corpus, vocabulary_file, tmp_path / "more", *options, f"--objective={one_objective}")
    assert read_folder(one) == read_folder(tmp_path / "more")


@pytest.mark.slow
def test_objectives_have_the_same_bytes_replayed_and_under_another_name(
    one_objective, corpus, vocabulary_file, tmp_path
):
    one = build(corpus, vocabulary_file, tmp_path / "one", objective=one_objective)
    other = make_corpus(tmp_path / "other" / "z.txt")
    options = ["--direct_runner_bundle_repeat=1"]
    replayed = build(other, vocabulary_file, tmp_path / "replayed", objective=one_objective, options=options)
    assert read_folder(one) == read_folder(replayed)


@pytest.mark.slow
@pytest.mark.parametrize("exchange", ["files", "engine"])
def test_objectives_have_the_same_bytes_through_the_portable_job_service(
    exchange, objective, corpus, vocabulary_file, tmp_path
):
    one = build(corpus, vocabulary_file, tmp_path / "one", objective=objective)
    with portable_job_service(tmp_path) as options:
        options += [f"--objective={objective}", f"--exchange={exchange}"]
        run_job(corpus, vocabulary_file, tmp_path / "portable", *options)
    assert read_folder(one) == read_folder(tmp_path / "portable")


@pytest.mark.first_form
def test_objectives_count_every_position(objective, corpus, vocabulary_file, tmp_path):
    folder = build(corpus, vocabulary_file, tmp_path / "r", objective=objective)
    manifest = read_manifest(folder)
    records = [record for part in PARTS for record in read_part(folder, part)]
    counters, labels = manifest.counters, sum(int(record["next_sentence_labels"][0]) for record in records)
    assert counters["positions"] == sum(len(record["input_ids"]) for record in records)
    assert counters["padding_positions"] == sum(int((record["input_mask"] == 0).sum()) for record in records)
    assert counters["positions"] == counters["instance_tokens"] + counters["padding_positions"]
    assert manifest.config["objective"] == objective
    names = {"mlm_nsp": "random_next", "mlm_sop": "swapped"}
    assert {name: counters[name] for name in names.values() if name in counters} == (
        {names[objective]: labels} if objective in names else {}
    )
    assert labels if objective in names else not labels


def test_packed_records_hold_every_token_once_a_copy(corpus, vocabulary_file, tmp_path):
    folder = build(corpus, vocabulary_file, tmp_path / "r", objective="mlm", duplication=3)
    tokenizer = tokenizer_of(folder)
    train, held_out = (read_part(folder, part) for part in PARTS)
    found = Counter()
    for records, weight in ((train, 1), (held_out, 3)):
        for record in records:
            for token in record["original"].tolist():
                found[tokenizer.pieces[token]] += weight
    expected = Counter(word for document in make_documents() for sentence in document for word in sentence.split() * 3)
    assert {name: count for name, count in found.items() if not name.startswith("[")} == expected
    assert documents_in(train, tokenizer).isdisjoint(documents_in(held_out, tokenizer))
    assert np.mean([len(record["original"]) for record in train]) > 31.5  # of 32


@pytest.mark.parametrize("objective", ["mlm", "rtd"])
def test_packed_rows_hold_whole_documents(objective, corpus, vocabulary_file, tmp_path):
    folder = build(corpus, vocabulary_file, tmp_path / "r", objective=objective, packing=True)
    tokenizer, records = tokenizer_of(folder), kbf.PretrainingRecords(folder)
    documents = {tuple(" ".join(document).split()) for document in make_documents()}
    whole = cut = 0
    for number in range(len(records)):
        ids, numbers = restore_tokens(records[number]), records[number]["input_mask"]
        for text in range(1, numbers.max() + 1):
            words = tuple(tokenizer.pieces[token] for token in ids[numbers == text][1:-1])
            whole += words in documents
            cut += words not in documents
            assert any(words == each[start : start + len(words)] for each in documents for start in range(len(each)))
    assert cut > 10 and whole > 10
    verdicts = {finding.what: finding.verdict for finding in examine_records(folder).findings}
    assert {verdicts[fault] for fault in FAULTS} == {"ok"}
    counts = RecordCounts(make_layout(read_manifest(folder).config | {"packing": False}, tokenizer.pieces))
    for record in TFRecordFile(next(folder.glob("train-*.tfrecord"))):
        counts.add(record, "a place")
    counts.flush()
    assert counts.faults["padding"] > 0  # of what does not say that it is packed
    with pytest.raises(ValueError, match="must be that of the records if these are packed"):
        kbf.PretrainingRecords(folder, sequence_length=16)
    assert read_manifest(folder).config["packing"] is True
    with pytest.raises(ValueError, match="must go with an objective of one text.* Received: mlm_sop"):
        make_records_config(objective="mlm_sop", packing=True)


@pytest.mark.slow
def test_ordered_records_hold_neighbours_of_one_document(corpus, vocabulary_file, tmp_path):
    folder = build(corpus, vocabulary_file, tmp_path / "r", objective="mlm_sop")
    tokenizer = tokenizer_of(folder)
    for record in read_part(folder, "train"):
        places = []
        for side in (0, 1):
            segment = record["original"][record["segment_ids"][: len(record["original"])] == side]
            words = [tokenizer.pieces[token] for token in segment]
            places.append([tuple(map(int, word[1:].split("s"))) for word in words if word[0] == "d" and "s" in word])
        if all(places):  # truncation can cut the word that tells
            first, second = places if not record["next_sentence_labels"][0] else places[::-1]
            assert {number for number, _ in first} == {number for number, _ in second}
            assert second[0][1] > first[-1][1]


@pytest.mark.first_form
@pytest.mark.parametrize(
    ("text", "objective", "message"),
    [
        ("\n\n", "mlm", "must hold text to train on"),
        ("a b\n\nc d\n", "mlm_sop", "must hold a document of two or more sentences"),
    ],
)
def test_objectives_refuse_text_that_gives_nothing(text, objective, message, vocabulary_file, tmp_path):
    corpus = make_corpus(tmp_path / "a.txt", text)
    with pytest.raises(ValueError, match=message) as caught:
        build(corpus, vocabulary_file, tmp_path / "r", objective=objective, held_out_fraction=0)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["mlm", pytest.param("mlm_sop", marks=pytest.mark.slow)])
def test_one_document_is_enough_without_next_sentences(objective, vocabulary_file, tmp_path):
    corpus = make_corpus(tmp_path / "one.txt", as_text(make_documents()[3:4]))
    folder = build(corpus, vocabulary_file, tmp_path / "r", objective=objective, held_out_fraction=0)
    assert read_manifest(folder).counters["instances_train"]


@pytest.mark.slow
@pytest.mark.skipif(not DATA, reason="KBF_TEST_DATA is not set")
def test_records_of_wikipedia_for_masked_lm_pad_less_than_2_percent(tmp_path):
    corpus = CorpusConfig(input=(f"{DATA}/corpus/wiki_en_dev.txt",))
    vocabulary = f"{DATA}/vocab/uncased_L-12_H-768_A-12.vocab.txt"
    config = RecordsConfig(objective="mlm", duplication=1)
    counters = read_manifest(build_records(corpus, config, vocabulary, False, tmp_path / "r")).counters
    assert counters["padding_positions"] < 0.02 * counters["positions"]
    assert counters["instance_tokens"] > counters["tokens"] > 300_000
