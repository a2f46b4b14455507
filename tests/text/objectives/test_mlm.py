import os
from pathlib import Path

import numpy as np
import pytest

from keras_bert_flow.text.corpus.documents import ReadingRule, read_documents
from keras_bert_flow.text.objectives.mlm import pack_documents

DATA = os.environ.get("KBF_TEST_DATA")
CLS, SEP = 2, 3


def make_documents(lengths):
    """Return documents in which every token is another one."""
    borders = 10 + np.cumsum([0, *lengths])
    return [np.arange(start, end, dtype=np.int32) for start, end in zip(borders[:-1], borders[1:], strict=True)]


def pack(documents, sequence_length, copies=1):
    return list(pack_documents(documents, sequence_length, copies, CLS, SEP))


def random_documents(seed):
    rng = np.random.default_rng(seed)
    return make_documents(rng.geometric(1 / rng.integers(2, 60), rng.integers(1, 20)))


@pytest.mark.parametrize("sequence_length", [8, 17, 64, 512])
@pytest.mark.parametrize("copies", [1, 3])
def test_packing_loses_and_repeats_no_token(sequence_length, copies):
    for seed in range(60):
        documents = random_documents(seed)
        packed = pack(documents, sequence_length, copies)
        text = np.concatenate([sequence[1:-1] for sequence in packed])
        text = text[text != SEP]
        assert text.tolist() == np.tile(np.concatenate(documents), copies).tolist()
        for sequence in packed:
            assert 3 <= len(sequence) <= sequence_length
            words = sequence[sequence > SEP]
            assert len(set(words.tolist())) == len(words)  # no token twice in a sequence
            assert sequence.dtype == np.int32


@pytest.mark.parametrize("sequence_length", [8, 17, 64])
def test_packing_puts_one_separator_between_documents(sequence_length):
    for seed in range(60):
        documents = random_documents(seed)
        number_of = {int(token): number for number, document in enumerate(documents) for token in document}
        for sequence in pack(documents, sequence_length, 2):
            assert sequence[0] == CLS and sequence[-1] == SEP
            assert np.sum(sequence == CLS) == 1
            inner = sequence[1:-1]
            for before, after in zip(inner[:-1], inner[1:], strict=True):
                assert (before == SEP) + (after == SEP) <= 1
                if before != SEP and after != SEP:
                    assert number_of[int(before)] == number_of[int(after)]
            borders = np.flatnonzero(inner == SEP)
            assert all(number_of[int(inner[place - 1])] != number_of[int(inner[place + 1])] for place in borders) or (
                len(documents) == 1  # a lap of one document borders on the next
            )


def test_packing_fills_every_sequence_but_the_last():
    for seed in range(60):
        documents = random_documents(seed)
        packed = pack(documents, 16, 2)
        if sum(map(len, documents)) + len(documents) < 14:
            continue  # shorter than a sequence: each copy is one
        assert all(len(sequence) >= 15 for sequence in packed[:-1])  # 15 where a document ends at the very end


def test_packing_examples():
    one, two = make_documents([3, 2])
    assert [sequence.tolist() for sequence in pack([one, two], 8)] == [[2, 10, 11, 12, 3, 13, 14, 3]]
    assert [sequence.tolist() for sequence in pack([one, two], 5)] == [[2, 10, 11, 12, 3], [2, 13, 14, 3]]
    assert [sequence.tolist() for sequence in pack([one, two], 6)] == [[2, 10, 11, 12, 3], [2, 13, 14, 3]]
    assert [sequence.tolist() for sequence in pack([one, two], 20, 2)] == [[2, 10, 11, 12, 3, 13, 14, 3]] * 2
    # The second lap goes on where the first one ended, and so is cut at another place.
    assert [sequence.tolist() for sequence in pack(make_documents([7]), 7, 2)] == [
        [2, 10, 11, 12, 13, 14, 3],
        [2, 15, 16, 3, 10, 11, 3],
        [2, 12, 13, 14, 15, 16, 3],
    ]


@pytest.mark.skipif(not DATA, reason="KBF_TEST_DATA is not set")
def test_packing_of_wikipedia_pads_less_than_2_percent():
    path = str(Path(DATA) / "corpus" / "wiki_en_dev.txt")
    documents = list(read_documents(path, ReadingRule()))
    documents = make_documents([sum(len(sentence.split()) for sentence in text.sentences) for text in documents])
    for sequence_length in (64, 128, 512):
        lengths = [len(sequence) for sequence in pack(documents, sequence_length)]
        assert 1 - sum(lengths) / (sequence_length * len(lengths)) < 0.02
