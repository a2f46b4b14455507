"""Texts as sequences: the same ids as `transformers` gives, cut where the original cuts."""

import numpy as np
import pytest

from keras_bert_flow.tasks.core.task import Features, join_texts
from keras_bert_flow.text.tokenizers.wordpiece import WordPieceTokenizer
from keras_bert_flow.text.vocabulary import SPECIAL_PIECES, write_vocabulary
from tests.tasks.kinds import CASES, TOKENIZER, make_case

PIECES = (*SPECIAL_PIECES, "the", "fox", "run", "##s", "##ning", "quick", ",", "e", "##t", "a", "b", "##b")
FIRSTS = ("the quick fox", "a", "Running, the fox runs the running et", "abb abb abb abb abb abb abb abb", "b b", "fox")
SECONDS = ("runs", "the fox, the fox, the fox, runs", "Été the fox", "a b a b a b a b a b", "b", "quick run")
# No pair is of one length: of such, `transformers` may cut the first where the original cuts the second.
# From one token of each text to more than the longest needs; odd and even, for the last place of a tie.
LENGTHS = (5, 6, 7, 8, 11, 12, 16, 17, 40)


@pytest.fixture
def tokenizer():
    return WordPieceTokenizer(PIECES)


@pytest.fixture
def reference(tmp_path):
    transformers = pytest.importorskip("transformers", reason="the reference needs transformers")
    write_vocabulary(tmp_path / "vocab.txt", PIECES)
    return transformers.BertTokenizer(str(tmp_path / "vocab.txt"), do_lower_case=True)


def assert_joined_as(tokenizer, firsts, seconds, length, expected):
    for row, (first, second) in enumerate(zip(firsts, seconds, strict=True)):
        second = None if second is None else tokenizer.encode(second)
        token_ids, first_length = join_texts(tokenizer, tokenizer.encode(first), second, length)
        assert token_ids.tolist() == expected["input_ids"][row] and token_ids.dtype == np.int32
        segments = [0] * first_length + [1] * (len(token_ids) - first_length)
        assert segments == expected["token_type_ids"][row]


@pytest.mark.parametrize("length", LENGTHS)
def test_encoding_of_singles_equals_transformers(tokenizer, reference, length):
    expected = reference(list(FIRSTS), truncation=True, max_length=length)
    assert_joined_as(tokenizer, FIRSTS, [None] * len(FIRSTS), length, expected)


@pytest.mark.parametrize("length", LENGTHS)
def test_encoding_of_pairs_equals_transformers(tokenizer, reference, length):
    expected = reference(list(FIRSTS), list(SECONDS), truncation="longest_first", max_length=length)
    assert_joined_as(tokenizer, FIRSTS, SECONDS, length, expected)


def test_encoding_cuts_the_second_of_equal_texts(tokenizer):
    texts = (tokenizer.encode(text) for text in ("a a a", "b b b"))
    token_ids, first_length = join_texts(tokenizer, *texts, 8)  # google-research's `_truncate_seq_pair`
    ids = {piece: number for number, piece in enumerate(PIECES)}
    assert token_ids.tolist() == [ids[piece] for piece in ("[CLS]", "a", "a", "a", "[SEP]", "b", "b", "[SEP]")]
    assert first_length == 5


@pytest.mark.parametrize(("second", "least"), [(None, 2), ("b", 3)])
def test_length_without_room_for_special_tokens_is_refused(tokenizer, second, least):
    first, second = tokenizer.encode("a"), None if second is None else tokenizer.encode(second)
    assert len(join_texts(tokenizer, first, second, least)[0]) == least
    for length in (least - 1, 0, -5):
        with pytest.raises(ValueError, match=f"must be at least {least}, .* Received: {length}. Give more") as caught:
            join_texts(tokenizer, first, second, length)
        assert "\n" not in str(caught.value)


def test_length_of_a_row_is_that_of_its_longest_sequence():
    sequences = [np.zeros(length, np.int32) for length in (3, 7, 5, 4, 2, 6)]
    nothing = np.zeros(6, np.int32)
    assert Features(sequences, nothing, np.arange(6)).lengths.tolist() == [3, 7, 5, 4, 2, 6]
    assert Features(sequences, nothing, np.arange(2), sequences_per_row=3).lengths.tolist() == [7, 6]
    assert Features([], nothing[:0], np.arange(0)).lengths.tolist() == []


@pytest.mark.parametrize("name", CASES)
def test_every_task_cuts_its_rows_and_says_to_what(name):
    case = make_case(name)
    features = case.task.encode(TOKENIZER, case.dev, 16)
    assert features.sequence_length == 16 and features.lengths.max() <= 16
