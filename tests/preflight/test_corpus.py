"""The beginning of a corpus tells what would end its reading, within bounds."""

import time
from pathlib import Path

import pytest

from beam_jobs.pairing import HELD_OUT, PoolChoice
from keras_bert_flow.config import PipelineConfig
from keras_bert_flow.preflight.corpus import MOST_BYTES, check_text, is_held_out

LINE = b"A line without a field. " * 40 + b"\n"


def configure(path: Path, **corpus) -> PipelineConfig:
    return PipelineConfig(corpus={"input": (str(path),)} | corpus)


def test_held_out_documents_are_those_of_the_job():
    choose = PoolChoice(100, 0.3, seed=7)
    names = [f"{number:032x}" for number in range(200)]
    held_out = [is_held_out(name, 0.3, 7) for name in names]
    assert held_out == [choose(name)[0] == HELD_OUT for name in names]
    assert 30 < sum(held_out) < 90  # 60 expected, standard deviation 6.5


def test_large_corpus_is_judged_by_its_beginning(tmp_path):
    path = tmp_path / "texts.jsonl"
    with open(path, "wb") as file:
        file.write(LINE * (2 * MOST_BYTES // len(LINE)))
        file.truncate(40 * MOST_BYTES)  # sparse
    started = time.process_time()
    with pytest.raises(ValueError, match="in its beginning alone. Name the field"):
        check_text(configure(path), [str(path)], makes_records=True)
    check_text(configure(path, max_rejected_share=0.5), [str(path)], makes_records=True)  # the end may have text
    assert time.process_time() - started < 10  # 0.5 s; to its end it would be 20 s


def test_document_without_an_end_is_not_read_to_it(tmp_path):
    path = tmp_path / "one.txt"
    path.write_bytes(LINE * (2 * MOST_BYTES // len(LINE)))
    check_text(configure(path), [str(path)], makes_records=True)


def test_two_documents_are_enough_of_any_corpus(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_bytes(b"A cat sat.\n\nA dog ran.\n\n" + b"\xff\n" * 1000)  # which the job will tell
    check_text(configure(path), [str(path)], makes_records=True)
