"""Text and vocabularies that are replaced while a job reads them leave no result, also if they are put back."""

import os
import threading
import time
from contextlib import contextmanager

import pytest

from beam_jobs.build_vocabulary import build_vocabulary
from keras_bert_flow.config.text import VocabularyConfig
from keras_bert_flow.results.manifest import read_manifest
from tests.beam_jobs.conftest import build, make_corpus, names_in
from tests.patience import PATIENCE_SECONDS


@contextmanager
def replaced(path, work):
    """Replace a file, and put it back, once the job has its work folder: it has digested its inputs by then."""

    def replace():
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not work.exists() and time.monotonic() < deadline:
            time.sleep(0.001)
        kept, other = path.with_name("kept"), path.with_name("other")
        other.write_bytes(path.read_bytes().replace(b"a", b"b"))
        os.link(path, kept)
        os.replace(other, path)  # at no moment is there no file
        os.replace(kept, path)

    thread = threading.Thread(target=replace)
    thread.start()
    yield
    thread.join()


@pytest.mark.parametrize("which", ["text", "vocabulary"])
def test_records_of_a_replaced_input_are_refused(tmp_path, vocabulary_file, which):
    corpus = make_corpus(tmp_path / "text" / "a.txt")
    path = tmp_path / "text" / "a.txt" if which == "text" else vocabulary_file
    before = names_in(tmp_path)
    with (
        replaced(path, tmp_path / ".records.work"),
        pytest.raises(ValueError, match=rf"An input must not change .*{path}, changed"),
    ):
        build(corpus, vocabulary_file, tmp_path / "records")
    assert names_in(tmp_path) == before


def test_vocabulary_of_a_replaced_text_is_refused(tmp_path):
    corpus = make_corpus(tmp_path / "text" / "a.txt")
    with (
        replaced(tmp_path / "text" / "a.txt", tmp_path / ".words.work"),
        pytest.raises(ValueError, match="An input must not change"),
    ):
        build_vocabulary(corpus, VocabularyConfig(size=60), tmp_path / "words")
    assert names_in(tmp_path) == ["text"]


@pytest.mark.slow
def test_text_that_a_folder_gets_meanwhile_is_not_read(tmp_path, vocabulary_file):
    corpus = make_corpus(tmp_path / "text" / "a.txt", input=(str(tmp_path / "text"),))
    more = tmp_path / "text" / "more.txt"

    def add():
        while not (tmp_path / ".records.work").exists():
            time.sleep(0.001)
        more.write_text("g g g\n\n" * 50)

    thread = threading.Thread(target=add)
    thread.start()
    made = build(corpus, vocabulary_file, tmp_path / "records")
    thread.join()
    assert read_manifest(made).counters["files_read"] == 1
    more.unlink()
    assert build(corpus, vocabulary_file, tmp_path / "records") == made  # the key is that of the one file
