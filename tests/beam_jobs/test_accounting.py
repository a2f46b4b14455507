"""Everything that is read is used or rejected for a reason: lines, documents and files, with every kind of bad one."""

import json
import os
from collections import Counter

import apache_beam as beam
import pyarrow as pa
import pytest
from apache_beam.testing import test_pipeline
from apache_beam.testing.util import assert_that, equal_to
from pyarrow import parquet

from beam_jobs.build_vocabulary import build_vocabulary
from beam_jobs.exchange import FileExchange
from beam_jobs.reading import REJECTED_FILE, ReadCorpus, ReadDocuments
from keras_bert_flow.config.text import CorpusConfig, VocabularyConfig
from keras_bert_flow.results.manifest import INFORMATIONAL, check_folder
from keras_bert_flow.text.corpus.documents import ReadingRule
from keras_bert_flow.text.corpus.inputs import LocalStorage
from tests.beam_jobs.conftest import as_text, build, make_documents, names_in, read_folder
from tests.text.test_unpacking import PACK

LINES = {"lines": "sentences", "max_line_bytes": 200}


def write_good_files(folder):
    """Write files of every format, with every kind of line that cannot be used."""
    folder.mkdir()
    documents = make_documents()
    (folder / "a.txt").write_bytes(as_text(documents[:60]).encode() + b"\n\ncaf\xe9\n \n" + b"x" * 201 + b"\n")
    lines = [json.dumps({"text": "\n".join(sentences)}) for sentences in documents[60:100]]
    bad = ["{", '{"body": "a"}', '{"text": " "}', "", '{"text": "' + "x" * 300 + '"}']
    (folder / "b.jsonl").write_text("\n".join(lines + bad) + "\n")
    texts = ["\n".join(sentences) for sentences in documents[100:130]]
    parquet.write_table(pa.table({"text": [*texts, None, "", "x" * 300]}), folder / "c.parquet")
    for suffix, pack in PACK.items():
        (folder / f"d.txt{suffix}").write_bytes(pack(as_text(documents[130:140]).encode()))  # each document four times
    (folder / "e.txt").write_bytes("\u0301\n\n\u00ad\n".encode())  # two documents without a token
    (folder / "empty.txt").touch()
    return folder


def write_bad_files(folder):
    """Add files that cannot be read to their end, after many documents where they are cut, and return their names."""
    text = as_text(make_documents(400)).encode()
    for suffix, pack in PACK.items():
        (folder / f"cut.txt{suffix}").write_bytes(pack(text)[:-7])
    parquet.write_table(pa.table({"text": ["some text"] * 500}), folder / "cut.parquet")
    with open(folder / "cut.parquet", "r+b") as file:
        file.truncate(400)
    parquet.write_table(pa.table({"body": ["some text"]}), folder / "other.parquet")
    (folder / "none.jsonl.gz").write_bytes(b"no gzip")
    (folder / "zero.txt.gz").touch()
    return sorted(
        [*(f"cut.txt{suffix}" for suffix in PACK), "cut.parquet", "other.parquet", "none.jsonl.gz", "zero.txt.gz"]
    )


def rejected(counters, unit):
    return sum(number for name, number in counters.items() if name.startswith(f"{unit}_rejected_"))


def test_totals_add_up_with_every_kind_of_bad_line_and_file(vocabulary_file, tmp_path):
    folder = write_good_files(tmp_path / "text")
    bad = write_bad_files(folder)
    corpus = CorpusConfig(input=(str(folder),), skip_bad_inputs=True, max_rejected_share=1, **LINES)
    output = build(corpus, vocabulary_file, tmp_path / "r")
    counters = check_folder(output).counters
    assert counters["files_read"] == len(names_in(folder)) == 9 + len(bad)
    assert counters["files_used"] + rejected(counters, "files") == counters["files_read"]
    assert counters["files_rejected_damaged"] == len(bad)
    assert counters["lines_read"] == counters["lines_used"] + counters["lines_blank"] + rejected(counters, "lines")
    assert counters["bytes_read"] == counters["bytes_used"] + counters["bytes_blank"] + rejected(counters, "bytes")
    reasons = {"too_long": 3, "not_utf8": 1, "not_json_with_text": 2, "null": 1}
    assert {name: counters[f"lines_rejected_{name}"] for name in reasons} == reasons
    assert rejected(counters, "lines") == sum(reasons.values())
    used = counters["documents_train"] + counters["documents_held_out"]
    assert counters["documents"] == used + counters["duplicate_documents"] + counters["documents_without_tokens"]
    assert (used, counters["duplicate_documents"], counters["documents_without_tokens"]) == (140, 30, 2)
    named = (output / REJECTED_FILE).read_text().splitlines()
    assert sorted(line.split("Received: ")[1].split(",")[0] for line in named) == [f"{folder}/{name}" for name in bad]


@pytest.mark.slow
def test_skipped_files_leave_no_trace_in_the_records(vocabulary_file, tmp_path):
    folder = write_good_files(tmp_path / "text")
    corpus = CorpusConfig(input=(str(folder),), skip_bad_inputs=True, max_rejected_share=1, **LINES)
    whole = read_folder(build(corpus, vocabulary_file, tmp_path / "r"))
    assert REJECTED_FILE not in whole and REJECTED_FILE in INFORMATIONAL  # it names places
    write_bad_files(folder)
    options = ["--direct_runner_bundle_repeat=1"]
    found = read_folder(build(corpus, vocabulary_file, tmp_path / "s", options=options))
    del found[REJECTED_FILE], found["manifest.json"], whole["manifest.json"]
    assert found == whole  # none of the documents that stood before the damage


@pytest.mark.first_form
@pytest.mark.parametrize(
    "name",
    [
        "cut.txt.gz",
        "other.parquet",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("cut.txt.zst", "cut.parquet", "zero.txt.gz")),
    ],
)
def test_bad_file_is_named_where_it_is_not_to_be_skipped(name, vocabulary_file, tmp_path):
    folder = write_good_files(tmp_path / "text")
    for other in set(write_bad_files(folder)) - {name}:
        (folder / other).unlink()
    with pytest.raises(ValueError, match=f"Received: {folder}/{name}, ") as caught:
        build(CorpusConfig(input=(str(folder),), **LINES), vocabulary_file, tmp_path / "out" / "r")
    assert "\n" not in str(caught.value)
    assert names_in(tmp_path / "out") == []


@pytest.mark.slow
def test_one_unreadable_file_among_a_thousand(tmp_path, monkeypatch, caplog):
    for number in range(1000):
        (tmp_path / f"{number:03}.txt").write_text(f"word{number} again\n")

    def refuse(self, path):
        if path.endswith("500.txt"):
            raise PermissionError(13, "Permission denied", path)
        return open(path, "rb")

    monkeypatch.setattr(LocalStorage, "open", refuse)  # root may read everything, so a mode would not do
    corpus = CorpusConfig(input=(str(tmp_path),))
    settings = VocabularyConfig(size=60)
    with pytest.raises(ValueError, match=r"Received: .*/500\.txt: Permission denied\."):
        build_vocabulary(corpus, settings, tmp_path / "out" / "v")
    skipping = corpus.model_copy(update={"skip_bad_inputs": True})
    output = build_vocabulary(skipping, settings, tmp_path / "out" / "v")
    counters = check_folder(output).counters
    expected = {"files_read": 1000, "files_used": 999, "files_rejected_unreadable": 1, "documents": 999, "words": 1998}
    assert expected.items() <= counters.items()
    assert [record.getMessage() for record in caplog.records if "left out" in record.getMessage()] == [
        f"1 of 1000 corpus files were left out; {REJECTED_FILE} names them. The first: "
        + (output / REJECTED_FILE).read_text().strip()
    ]


@pytest.mark.parametrize("place", ["text/a.txt", "text"])
def test_file_or_folder_without_permission_is_named(place, vocabulary_file, tmp_path):
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("a")
    (tmp_path / place).chmod(0)
    try:
        if os.access(tmp_path / place, os.R_OK):
            pytest.skip("root may read everything")
        with pytest.raises(ValueError, match=f"Received: {tmp_path / place}: Permission denied"):
            build(CorpusConfig(input=(str(tmp_path),)), vocabulary_file, tmp_path / "r")
    finally:
        (tmp_path / place).chmod(0o700)


@pytest.mark.parametrize("skip", [True, False])
def test_file_that_disappears_before_it_is_read(skip, tmp_path):
    reader = ReadDocuments(ReadingRule(), LocalStorage(), skip)
    reader.start_bundle()
    if not skip:
        with pytest.raises(ValueError, match=r"gone\.txt: No such file"):
            list(reader.process(str(tmp_path / "gone.txt")))
        return
    assert list(reader.process(str(tmp_path / "gone.txt"))) == []
    counts = dict(output.value.value for output in reader.finish_bundle())
    assert counts.pop("files_read") == counts.pop("files_rejected_unreadable") == 1
    assert counts.pop("bytes_read") == counts.pop("bytes_rejected_unreadable") == 0
    assert len(counts) == 2 and all("gone.txt" in name for name in counts)


def test_file_that_goes_bad_after_it_was_found_whole_fails_the_bundle(tmp_path, monkeypatch):
    (tmp_path / "a.txt.gz").write_bytes(PACK[".gz"](b"a\n\nb\n")[:-1])
    monkeypatch.setattr("beam_jobs.reading.find_fault", lambda *arguments: None)
    reader = ReadDocuments(ReadingRule(), LocalStorage(), True)
    reader.start_bundle()
    with pytest.raises(ValueError, match=r"must be whole.*a\.txt\.gz"):
        list(reader.process(str(tmp_path / "a.txt.gz")))


def test_read_corpus_gives_every_document_of_every_format(tmp_path):
    folder = write_good_files(tmp_path / "text")
    expected = Counter({"\n".join(sentences): 1 for sentences in make_documents()[:130]})
    expected.update({"\n".join(sentences): 4 for sentences in make_documents()[130:140]})
    expected.update(["\u0301", "\u00ad"])
    with test_pipeline.TestPipeline(runner="FnApiRunner") as pipeline:
        read = pipeline | ReadCorpus(
            CorpusConfig(input=(str(folder),), max_rejected_share=1, **LINES), FileExchange(tmp_path)
        )
        texts = read.texts | beam.FlatMap(lambda texts: ["\n".join(map(str.strip, lines)) for lines in texts])
        assert_that(texts, equal_to(list(expected.elements())))
