"""The beginning of a corpus tells what would end its reading, within bounds."""

import os
from pathlib import Path

import pytest

from keras_bert_flow.checks.run import check_run
from keras_bert_flow.checks.stages import MOST_BYTES, check_text, check_vocabulary_stage
from keras_bert_flow.config.pipeline import PipelineConfig

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


@pytest.mark.parametrize("given", ["corpus", "output", "runs"])
def test_paths_that_beam_cannot_carry_are_refused(given, tmp_path):
    """Names of files are bytes; Beam encodes its strings as UTF-8."""
    name = os.fsdecode(b"caf\xe9")
    (tmp_path / name).mkdir()
    (tmp_path / name / "a.txt").write_text("One.\n\nTwo.\n\nThree.\n")
    (tmp_path / "a.txt").write_text("One.\n\nTwo.\n\nThree.\n")
    folder = tmp_path / name if given == "corpus" else tmp_path / "a.txt"
    config = PipelineConfig(backend="torch", corpus={"input": [str(folder)]}, runs=str(tmp_path / name))
    with pytest.raises(ValueError, match=r"must be UTF-8. Received: .*caf\\udce9.*Rename it"):
        if given == "runs":
            check_run(config, ("vocabulary",))
        else:
            check_vocabulary_stage(config, tmp_path / "out" / (name if given == "output" else "out"))


def test_outputs_that_beam_would_not_find_again_are_refused(tmp_path, monkeypatch):
    (tmp_path / "d[1]").mkdir()
    (tmp_path / "a[b").mkdir()
    (tmp_path / "a.txt").write_text("One.\n\nTwo.\n\nThree.\n")
    config = PipelineConfig(backend="torch", corpus={"input": [str(tmp_path / "a.txt")]})
    check_vocabulary_stage(config, tmp_path / "a[b" / "out*")
    monkeypatch.chdir(tmp_path / "d[1]")
    for check in (check_vocabulary_stage, lambda config, output: check_run(config, ("vocabulary",))):
        with pytest.raises(ValueError, match=r"must not have \[...\] in its path.*d\[1\]"):
            check(config, Path("out"))
