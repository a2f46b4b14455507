"""The beginning of a corpus tells what would end its reading, within bounds."""

from pathlib import Path

import pytest

from keras_bert_flow.config import PipelineConfig
from keras_bert_flow.preflight.corpus import MOST_BYTES, check_text

LINE = b"A line without a field. " * 40 + b"\n"


def configure(path: Path, **corpus) -> PipelineConfig:
    return PipelineConfig(corpus={"input": (str(path),)} | corpus)


def test_large_corpus_is_judged_by_its_beginning(tmp_path):
    path = tmp_path / "texts.jsonl"
    with open(path, "wb") as file:
        file.write(LINE * (2 * MOST_BYTES // len(LINE)))
        file.truncate(40 * MOST_BYTES)  # sparse
    with pytest.raises(ValueError, match="in its beginning alone. Name the field"):
        check_text(configure(path), [str(path)], makes_records=True)
    check_text(configure(path, max_rejected_share=0.5), [str(path)], makes_records=True)  # the end may have text


def test_document_without_an_end_is_not_read_to_it(tmp_path):
    path = tmp_path / "one.txt"
    path.write_bytes(LINE * (2 * MOST_BYTES // len(LINE)))
    check_text(configure(path), [str(path)], makes_records=True)


def test_two_documents_are_enough_of_any_corpus(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_bytes(b"A cat sat.\n\nA dog ran.\n\n" + b"\xff\n" * 1000)  # which the job will tell
    check_text(configure(path), [str(path)], makes_records=True)
