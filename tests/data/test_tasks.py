"""Texts as model inputs: the same ids as `transformers` gives, cut where the original cuts, sliced exactly."""

import json
from itertools import islice

import numpy as np
import pytest

from keras_bert_flow.data.tasks import (
    TaskInputs,
    encode_texts,
    predict_probabilities,
    read_tokenizer,
    task_dataset,
)
from keras_bert_flow.text.tokenizer import WordPieceTokenizer
from keras_bert_flow.text.vocabulary import SPECIAL_PIECES, write_vocabulary

pytestmark = pytest.mark.any_backend

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


def assert_inputs_equal(inputs, expected):
    width = inputs.token_ids.shape[1]
    found = {"input_ids": inputs.token_ids, "token_type_ids": inputs.segment_ids, "attention_mask": inputs.padding_mask}
    for row in range(len(inputs)):
        for name, values in found.items():
            wanted = expected[name][row]
            assert values[row].tolist() == wanted + [0] * (width - len(wanted)), (row, name)


@pytest.mark.parametrize("length", LENGTHS)
def test_encoding_of_singles_equals_transformers(tokenizer, reference, length):
    expected = reference(list(FIRSTS), truncation=True, max_length=length)
    assert_inputs_equal(encode_texts(tokenizer, FIRSTS, None, length), expected)


@pytest.mark.parametrize("length", LENGTHS)
def test_encoding_of_pairs_equals_transformers(tokenizer, reference, length):
    expected = reference(list(FIRSTS), list(SECONDS), truncation="longest_first", max_length=length)
    assert_inputs_equal(encode_texts(tokenizer, FIRSTS, SECONDS, length), expected)


def test_encoding_cuts_the_second_of_equal_texts(tokenizer):
    inputs = encode_texts(tokenizer, ["a a a"], ["b b b"], 8)  # google-research's `_truncate_seq_pair`
    ids = {piece: number for number, piece in enumerate(PIECES)}
    pieces = ["[CLS]", "a", "a", "a", "[SEP]", "b", "b", "[SEP]"]
    assert inputs.token_ids[0].tolist() == [ids[piece] for piece in pieces]
    assert inputs.segment_ids[0].tolist() == [0, 0, 0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize(("words", "limit", "width"), [(1, 40, 8), (6, 40, 8), (7, 40, 16), (14, 40, 16), (14, 12, 12)])
def test_encoding_is_as_wide_as_the_longest_needs(tokenizer, words, limit, width):
    inputs = encode_texts(tokenizer, ["a", "a " * words], None, limit)
    assert inputs.token_ids.shape == inputs.segment_ids.shape == inputs.padding_mask.shape == (2, width)
    assert inputs.padding_mask.sum(axis=1).tolist() == [3, min(words + 2, limit)]
    assert {inputs.token_ids.dtype, inputs.segment_ids.dtype, inputs.padding_mask.dtype} == {np.dtype("int32")}


def make_numbered_inputs(count):
    numbers = np.arange(count, dtype=np.int32)[:, None] * np.array([[1, 100]], np.int32)
    return TaskInputs(numbers, numbers + 1, numbers + 2)


def test_take_picks_rows():
    found = make_numbered_inputs(5).take(np.array([3, 0, 3]))
    assert {name: values.tolist() for name, values in found.items()} == {
        "token_ids": [[3, 300], [0, 0], [3, 300]],
        "segment_ids": [[4, 301], [1, 1], [4, 301]],
        "padding_mask": [[5, 302], [2, 2], [5, 302]],
    }


@pytest.mark.parametrize("batch_size", [1, 3, 9])
def test_task_order_is_a_slice_and_a_permutation_in_each_epoch(batch_size):
    inputs, labels = make_numbered_inputs(7), np.arange(7, dtype=np.int32) * 10
    whole = list(islice(task_dataset(inputs, labels, batch_size, seed=2), 21))
    for step in (1, 2, 3, 8):
        rest = islice(task_dataset(inputs, labels, batch_size, seed=2, start_step=step), 21 - step)
        for (x, y), (other_x, other_y) in zip(whole[step:], rest, strict=True):
            np.testing.assert_array_equal(x["token_ids"], other_x["token_ids"])
            np.testing.assert_array_equal(y, other_y)
    rows = np.concatenate([x["token_ids"][:, 0] for x, _ in whole])
    np.testing.assert_array_equal(np.concatenate([y for _, y in whole]), rows * 10)
    first, second = rows[:7].tolist(), rows[7:14].tolist()
    assert sorted(first) == sorted(second) == list(range(7))
    assert first != second


def test_task_dataset_refuses_no_examples():
    with pytest.raises(ValueError, match="Received: none"):
        task_dataset(make_numbered_inputs(0), np.zeros(0, np.int32), 4)


@pytest.mark.parametrize(("settings", "cased"), [(None, False), ({"do_lower_case": False}, True), ({}, False)])
def test_tokenizer_of_a_model_directory_knows_its_case(tmp_path, settings, cased):
    write_vocabulary(tmp_path / "vocab.txt", PIECES)
    if settings is not None:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    assert read_tokenizer(tmp_path).cased is cased


class CountingClassifier:
    """Gives each row the logits (its number, 0), and notes the shapes it is asked for."""

    def __init__(self):
        self.shapes = set()

    def predict_on_batch(self, x):
        self.shapes.add(x["token_ids"].shape)
        return np.stack([x["token_ids"][:, 0], np.zeros(len(x["token_ids"]))], axis=1).astype("float32")


@pytest.mark.parametrize("batch_size", [1, 3, 7, 9])
def test_probabilities_leave_filler_out(batch_size):
    classifier = CountingClassifier()
    found = predict_probabilities(classifier, make_numbered_inputs(7), batch_size)
    assert classifier.shapes == {(batch_size, 2)}
    expected = 1 / (1 + np.exp(-np.arange(7.0)))
    np.testing.assert_allclose(found, np.stack([expected, 1 - expected], axis=1), atol=1e-6)  # float32
