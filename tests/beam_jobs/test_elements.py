"""What travels through Beam grows with the bytes of the text, not with the number of documents: each element costs."""

import random

import pytest
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from beam_jobs.build_vocabulary import build_vocabulary
from keras_bert_flow.config.text import VocabularyConfig
from tests.beam_jobs.conftest import build, make_corpus

ELEMENTS = "beam:metric:element_count:v1"


@pytest.fixture
def count_elements(monkeypatch):
    """Return a function that adds up the elements of all collections of the pipelines run so far."""
    results, run = [], FnApiRunner.run_stages

    def keep(self, *arguments):
        results.append(run(self, *arguments))
        return results[-1]

    def count():
        stages = (infos for result in results for infos in result._monitoring_infos_by_stage.values())
        # Of the encodings of a number the first bytes are the number itself: a varint.
        return sum(_read_varint(info.payload) for infos in stages for info in infos if info.urn == ELEMENTS)

    monkeypatch.setattr(FnApiRunner, "run_stages", keep)
    return count


def _read_varint(data):
    return sum((byte & 0x7F) << 7 * place for place, byte in enumerate(data))


def make_text(documents):
    """Return documents of one short sentence, no two alike."""
    rng = random.Random(0)
    return "\n\n".join(f"d{number} {rng.choice('abc')}" for number in range(documents))


@pytest.mark.parametrize("job", ["records", pytest.param("vocabulary", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_elements_do_not_grow_with_the_documents(job, count_elements, vocabulary_file, tmp_path):
    counts = []
    for documents in (100, 2000):
        corpus = make_corpus(tmp_path / f"{documents}.txt", make_text(documents))
        before = count_elements()
        if job == "records":
            build(corpus, vocabulary_file, tmp_path / f"r{documents}", duplication=1)
        else:
            build_vocabulary(corpus, VocabularyConfig(size=60), tmp_path / f"v{documents}")
        counts.append(count_elements() - before)
    few, many = counts
    assert few > 50  # they are counted
    # The pools of 64 documents go from one step to the next, as do batches of them, and nothing a document.
    assert many < few + 1900 / 4
