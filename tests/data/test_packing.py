"""Packed rows hold every text whole and once, with hardly any padding, and models compute on them what they should."""

import os
from pathlib import Path

import numpy as np
import pytest

import keras_bert_flow as kbf
from keras_bert_flow.data.text_preprocessor import pack_rows
from keras_bert_flow.text.tokenizers.wordpiece import WordPieceTokenizer
from tests.oracles.numpy_bert import randomise_weights
from tests.oracles.small_bert import TINY

pytestmark = pytest.mark.any_backend
DATA = os.environ.get("KBF_TEST_DATA")


def make_inputs(lengths, width=None):
    width = width or max(lengths)
    mask = (np.arange(width) < np.array(lengths)[:, None]).astype("int32")
    ids = np.arange(1, mask.size + 1, dtype="int32").reshape(mask.shape) % 40 + 1
    return {"token_ids": ids * mask, "segment_ids": (ids % 2) * mask, "padding_mask": mask}


def unpack(packed, lengths):
    return [
        {name: values[row, start : start + length] for name, values in packed.inputs.items()}
        for row, start, length in zip(packed.rows, packed.starts, lengths, strict=True)
    ]


@pytest.mark.parametrize("seed", range(20))
def test_every_text_is_there_whole_and_once(seed):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 33, rng.integers(1, 60)).tolist()
    inputs, packed = make_inputs(lengths), pack_rows(make_inputs(lengths), 32)
    for text, part in enumerate(unpack(packed, lengths)):
        for name in ("token_ids", "segment_ids"):
            np.testing.assert_array_equal(part[name], inputs[name][text, : lengths[text]])
        assert len(set(part["padding_mask"])) == 1 and part["padding_mask"][0] > 0
    mask = packed.inputs["padding_mask"]
    assert (mask > 0).sum() == sum(lengths)
    for row in mask:  # numbered from 1 in their order, with padding at the end alone
        steps = np.diff(row)
        assert row[0] == 1 and set(steps[row[1:] > 0]) <= {0, 1} and (np.flatnonzero(row == 0) >= (row > 0).sum()).all()
    assert all(values.dtype == np.int32 and values.shape == mask.shape for values in packed.inputs.values())


def test_rows_are_few():
    assert pack_rows(make_inputs([5, 3, 3, 5, 4, 4]), 8).inputs["token_ids"].shape == (3, 8)
    assert pack_rows(make_inputs([8, 8]), 8).rows.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        (make_inputs([3, 9]), "1 to 8 tokens.*Received: 9 tokens in text 1"),
        (make_inputs([3, 0], 4), "Received: 0 tokens in text 1"),
        ({"token_ids": np.ones((1, 3)), "padding_mask": np.array([[1, 0, 1]])}, "padding at the end. Received: 2"),
    ],
)
def test_texts_that_cannot_be_packed_are_refused(inputs, words):
    with pytest.raises(ValueError, match=words):
        pack_rows(inputs, 8)


@pytest.mark.skipif(not DATA, reason="KBF_TEST_DATA is not set")
def test_short_texts_have_less_than_2_percent_of_padding():
    lines = (Path(DATA) / "sst2" / "train.tsv").read_text().splitlines()[1:4001]
    tokenizer = WordPieceTokenizer.from_file(Path(DATA) / "vocab" / "uncased_L-12_H-768_A-12.vocab.txt")
    inputs = kbf.TextPreprocessor(tokenizer, 128)([line.split("\t")[0] for line in lines])
    padding = [(inputs["padding_mask"] == 0).mean(), (pack_rows(inputs, 128).inputs["padding_mask"] == 0).mean()]
    assert padding[0] > 0.5 and padding[1] < 0.02, padding


def test_a_masked_lm_predicts_on_packed_rows_what_it_does_on_texts():
    lengths = [9, 7, 5, 3, 2, 6]
    inputs, packed = make_inputs(lengths), pack_rows(make_inputs(lengths), 16)
    backbone = kbf.BertBackbone(vocabulary_size=42, use_pooler=False, max_positions=16, **TINY)
    randomise_weights(backbone, 3)
    alone = backbone.predict(inputs, verbose=0)["sequence_output"]
    together = backbone.predict(packed.inputs, verbose=0)["sequence_output"]
    for text, length in enumerate(lengths):
        part = together[packed.rows[text], packed.starts[text] : packed.starts[text] + length]
        np.testing.assert_allclose(part, alone[text, :length], atol=1e-5)  # sums over rows of another width
