"""The size of a corpus, and that neither copies nor empty documents starve the pools that it sets the number of."""

import unicodedata

import apache_beam as beam
import pytest
from apache_beam.testing import test_pipeline
from apache_beam.testing.util import assert_that, equal_to

from beam_jobs.pairing import DOCUMENTS_A_POOL
from beam_jobs.tokenizing import CorpusSize, MeasureCorpus, TokenizeDocuments
from keras_bert_flow.config.text import RecordsConfig
from keras_bert_flow.results.manifest import read_manifest
from keras_bert_flow.text.tokenizers.wordpiece import WordPieceTokenizer
from keras_bert_flow.text.vocabulary import SPECIAL_PIECES
from tests.beam_jobs.conftest import as_text, build, make_corpus, make_documents, read_folder

EMPTY = [
    "\u0301",
    "\u00ad\u200b",
    "\x01 \x02",
]  # an accent, which stays where case is kept; format characters; controls


def measure(texts, cased, exchange):
    tokenizer = WordPieceTokenizer([*SPECIAL_PIECES, "a", "b"], cased)
    with test_pipeline.TestPipeline(runner="FnApiRunner") as pipeline:
        batches = pipeline | beam.Create([texts[:7], texts[7:]])
        yield batches | beam.ParDo(TokenizeDocuments(tokenizer, False)) | MeasureCorpus(RecordsConfig(), exchange)


@pytest.mark.parametrize(("cased", "kept"), [(False, 0), (True, 1)])
@pytest.mark.slow
def test_size_is_of_distinct_documents_with_a_token(cased, kept, exchange):
    texts = [[text] for text in ["a b", "c", "ähm"] * 50 + EMPTY]
    for sizes in measure(texts, cased, exchange):
        expected = CorpusSize(3 + kept, 3 + 1 + 4 + 2 * kept, (3 + kept) * 1001)
        assert_that(sizes, equal_to([expected]))


def test_size_of_nothing_is_zero(exchange):
    for sizes in measure([], False, exchange):
        assert_that(sizes, equal_to([CorpusSize(0, 0, 0)]))


def random_next_share(corpus, vocabulary_file, output):
    counters = read_manifest(build(corpus, vocabulary_file, output, held_out_fraction=0)).counters
    return counters["random_next"] / counters["instances_train"], counters


def copies(documents):
    """Return 12 documents and 1,000 copies of another."""
    return documents[:12] + [documents[12]] * 1000


def empty(documents):
    """Return 13 documents and 1,000 different ones that have no token."""
    marks = [chr(code) for code in range(0x300, 0x370) if unicodedata.category(chr(code)) == "Mn"]
    return documents[:13] + [[first + second] for first in marks for second in marks][:1000]


@pytest.mark.slow
@pytest.mark.parametrize("spoil", [copies, empty])
def test_documents_that_add_nothing_do_not_starve_the_pools(spoil, vocabulary_file, tmp_path):
    documents = [document * 4 for document in make_documents() if len(document) > 5]
    clean, spoilt = (
        make_corpus(tmp_path / f"{n}.txt", as_text(d)) for n, d in [(1, documents[:13]), (2, spoil(documents))]
    )
    expected = read_folder(build(clean, vocabulary_file, tmp_path / "clean", held_out_fraction=0))
    share, counters = random_next_share(spoilt, vocabulary_file, tmp_path / "spoilt")
    assert len(spoil(documents)) > 4 * DOCUMENTS_A_POOL and counters["documents_train"] == 13
    assert share > 0.4  # of 100 pairs and more, each random by half a chance or more
    found = read_folder(tmp_path / "spoilt")
    del expected["manifest.json"], found["manifest.json"]
    assert found == expected
