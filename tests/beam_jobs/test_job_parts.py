"""A command that waits for a job is told of all of its parts, whatever process works on them, to their ends."""

from pathlib import Path

import pytest

from beam_jobs.build_vocabulary import build_vocabulary
from keras_bert_flow.config.text import VocabularyConfig
from keras_bert_flow.console.job_progress import MB, expect, following_job
from tests.beam_jobs.conftest import build, make_corpus

SEVERAL = ["--direct_running_mode=multi_processing", "--direct_num_workers=2"]


@pytest.mark.parametrize(
    "options",
    [
        pytest.param([], id="one"),
        pytest.param(SEVERAL, marks=pytest.mark.slow, id="several"),
        pytest.param(["--exchange=engine"], id="engine"),
    ],
)
def test_every_part_of_the_records_is_told_to_its_end(options, corpus, vocabulary_file, tmp_path):
    with following_job() as job:
        expect(MB, 1)
        build(corpus, vocabulary_file, tmp_path / "records", options=options)
        told = job.read()
    assert list(told) == ["reading", "tokenizing", "masking", "writing"]
    size = sum(Path(path).stat().st_size for path in corpus.input)
    assert told["reading"] == (pytest.approx(size / 1e6), 1, MB)
    documents = told["tokenizing"].total
    assert documents > 1 and told["tokenizing"].done == told["masking"].done == documents
    assert told["writing"] == (3, 3, "files")  # two for training, and the held-out one


@pytest.mark.slow
def test_every_part_of_the_vocabulary_is_told_to_its_end(tmp_path):
    corpus = make_corpus(tmp_path / "corpus.txt")
    with following_job() as job:
        build_vocabulary(corpus, VocabularyConfig(size=200), tmp_path / "vocabulary", SEVERAL)
        told = job.read()
    assert list(told) == ["reading", "counting", "choosing pieces"]
    assert told["counting"].done == told["counting"].total > 1
