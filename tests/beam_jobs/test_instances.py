"""The size of a corpus; pools as they come from sorted items; that copies and empty documents do not starve them."""

import tracemalloc
import unicodedata

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.testing import test_pipeline
from apache_beam.testing.util import assert_that, equal_to

from beam_jobs.instances import (
    DOCUMENTS_A_POOL,
    CorpusSize,
    MeasureCorpus,
    TokenizeDocuments,
    pack_document,
    place_documents,
    read_pools,
)
from keras_bert_flow.config.text import RecordsConfig
from keras_bert_flow.results.manifest import read_manifest
from keras_bert_flow.text.tokenizers.wordpiece import WordPieceTokenizer
from keras_bert_flow.text.vocabulary import SPECIAL_PIECES
from tests.beam_jobs.conftest import as_text, build, make_corpus, make_documents, read_folder

SEED, TOTAL, HELD_OUT_FRACTION = 1, 200, 0.2
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


def make_document(number, tokens=3):
    token_ids, lengths = np.full(tokens, number, np.int32), np.array([tokens], np.int32)
    return pack_document(f"{number:032x}", 0, lengths, token_ids)


def sorted_items(documents):
    placed = place_documents(documents, CorpusSize(TOTAL, 0, 0), HELD_OUT_FRACTION, SEED)
    return sorted(item for _, items in placed for item in items)


@pytest.mark.parametrize(("text_bytes", "buckets"), [(1_000, 32), (1_600_000_000, 100), (10**12, 1000)])
def test_documents_are_dealt_to_buckets_for_the_size_of_the_text(text_bytes, buckets):
    documents = [make_document(number) for number in range(50_000)]
    size = CorpusSize(64 * 100_000, text_bytes, 0)  # 100,000 pools
    assert {bucket for bucket, _ in place_documents(documents, size, 0.0, SEED)} == set(range(buckets))


@pytest.mark.parametrize("copies", [1, 3])
def test_each_document_is_in_one_pool_once(copies):
    documents = [make_document(number) for number in range(TOTAL)] * copies
    pools = list(read_pools(0, iter(sorted_items(documents))))
    assert {part for part, _, _ in pools} == {"train", "held_out"}
    found = [document.id for _, members, _ in pools for document in members]
    assert sorted(found) == [f"{number:032x}" for number in range(TOTAL)]
    for _, members, _ in pools:
        assert [document.id for document in members] == sorted(document.id for document in members)
    assert sum(repeated for _, _, repeated in pools) == TOTAL * (copies - 1)


def test_copies_of_a_document_are_held_once():
    (item,) = sorted_items([make_document(7, tokens=100_000)])  # 400 kB
    tracemalloc.start()
    ((_, documents, repeated),) = read_pools(0, (bytes(bytearray(item)) for _ in range(100)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (len(documents), repeated) == (1, 99)
    assert peak < 10 * len(item)  # the document, and few copies on their way; all would be 100


def random_next_share(corpus, vocabulary_file, output):
    counters = read_manifest(build(corpus, vocabulary_file, output, held_out_fraction=0)).counters
    return counters["random_next"] / counters["instances_train"], counters


def add_copies(documents):
    """Return 12 documents and 1,000 copies of another."""
    return documents[:12] + [documents[12]] * 1000


def add_empty(documents):
    """Return 13 documents and 1,000 different ones that have no token."""
    marks = [chr(code) for code in range(0x300, 0x370) if unicodedata.category(chr(code)) == "Mn"]
    return documents[:13] + [[first + second] for first in marks for second in marks][:1000]


@pytest.mark.slow
@pytest.mark.parametrize("spoil", [add_copies, add_empty])
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
