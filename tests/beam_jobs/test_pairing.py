"""Pools as they come from the sorted files."""

import tracemalloc

import numpy as np
import pytest

from beam_jobs.pairing import place_documents, read_pools
from beam_jobs.tokenizing import CorpusSize, pack_document

SEED, TOTAL, HELD_OUT_FRACTION = 1, 200, 0.2


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
