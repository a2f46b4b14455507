"""Attention within a window is computed block by block in long rows, and gives what all scores would give."""

import keras
import numpy as np
import pytest

import keras_bert_flow as kbf
from keras_bert_flow.backends.windows import divide_keys, divide_row, join_row
from keras_bert_flow.layers.attention import MultiHeadSelfAttention, keeping_scores
from keras_bert_flow.layers.masks import AttentionBias, attention_bias, make_bias
from keras_bert_flow.layers.patterns import FULL, Rotary, Window
from keras_bert_flow.models.families.modernbert import ModernBertShape
from keras_bert_flow.models.sizes import count_flops
from tests.contracts import randomise

RNG = np.random.default_rng(5)
WINDOW, LENGTH = Window(16), 101  # seven blocks of 16, the last one of 5 tokens
SHAPE = ModernBertShape(50, 1, 2, 8, 12, max_positions=LENGTH)
NUMPY = keras.ops.convert_to_numpy


def make_mask():
    """Rows of one text, of one with padding in it, and of three, with padding between them and after them."""
    mask = np.ones((3, LENGTH), "int32")
    mask[1, 60:] = mask[1, 20:25] = 0
    mask[2, 30:70], mask[2, 72:95], mask[2, 70:72], mask[2, 95:] = 2, 3, 0, 0
    return mask


def test_blocks_of_a_row_are_divided_and_joined():
    values = np.arange(2 * 7 * 3, dtype="float32").reshape(2, 7, 3)
    blocks = divide_row(keras.ops.convert_to_tensor(values), 4)
    assert blocks.shape == (2, 2, 4, 3) and not NUMPY(blocks)[:, 1, 3:].any()
    np.testing.assert_array_equal(NUMPY(join_row(blocks, 7)), values)
    keys = NUMPY(divide_keys(keras.ops.convert_to_tensor(values), 4))
    assert keys.shape == (2, 2, 12, 3) and not keys[:, 0, :4].any() and not keys[:, 1, 7:].any()
    np.testing.assert_array_equal(keys[:, 0, 4:11], values)
    np.testing.assert_array_equal(keys[:, 1, :7], values)


def test_bias_of_blocks_is_that_of_the_row():
    mask = make_mask()
    whole = NUMPY(attention_bias(mask, WINDOW))[:, 0]
    blocks = NUMPY(make_bias(keras.ops.convert_to_tensor(mask), WINDOW))
    assert blocks.shape == (3, 1, 7, 16, 48)
    for query in range(LENGTH):
        block, place = divmod(query, 16)
        for key in range(LENGTH):
            found = key - 16 * (block - 1)
            expected = whole[:, query, key]
            if 0 <= found < 48:
                np.testing.assert_array_equal(blocks[:, 0, block, place, found], expected)
            else:
                assert (expected < 0).all()


def attend(layer, inputs, mask, bias, training=False):
    return layer(keras.ops.convert_to_tensor(inputs), keras.ops.convert_to_tensor(mask), bias, training=training)


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_blocks_attend_as_the_whole_row(dtype):
    layer = MultiHeadSelfAttention(SHAPE, WINDOW, Rotary(100.0), dtype=dtype)
    inputs, mask = RNG.normal(size=(3, LENGTH, 8)).astype("float32"), make_mask()
    layer.build(inputs.shape, mask.shape)
    for weight in layer.weights:
        weight.assign(RNG.normal(0, 0.5, weight.shape))
    whole, blocks = (
        NUMPY(keras.ops.cast(attend(layer, inputs, mask, bias), "float32"))
        for bias in (
            attention_bias(mask, WINDOW),
            None,
        )
    )
    # float32: sums of products near 10, in another order; bfloat16: two units in the last place of values near 2.
    tolerance = 1e-5 if dtype == "float32" else 0.02
    np.testing.assert_allclose(blocks[mask > 0], whole[mask > 0], atol=tolerance)


def test_short_rows_other_patterns_and_global_tokens_are_not_divided():
    assert WINDOW.find_block(95) is None and WINDOW.find_block(96) == 16 and Window(3).find_block(96) == 16
    assert Window(16, num_global=1).find_block(1000) is None and FULL.find_block(1000) is None
    assert WINDOW.find_block(None) is None  # a length that is not known while a program is traced
    layer = AttentionBias(WINDOW)
    assert layer.compute_output_shape((3, LENGTH)) == (3, 1, 7, 16, 48)
    assert layer.compute_output_shape((3, None)) == (3, 1, None, None)


def test_kept_scores_are_those_of_the_whole_row():
    layer, mask = MultiHeadSelfAttention(SHAPE, WINDOW), make_mask()
    inputs = RNG.normal(size=(3, LENGTH, 8)).astype("float32")
    layer.build(inputs.shape, mask.shape)
    bias = make_bias(keras.ops.convert_to_tensor(mask), WINDOW)
    with keeping_scores() as kept:
        attend(layer, inputs, mask, bias)
    assert kept[0].shape == (3, 2, LENGTH, LENGTH)


def test_flops_of_local_layers_do_not_grow_with_the_row():
    shape = ModernBertShape(50, 2, 2, 8, 12, local_attention=32, global_every=2, max_positions=10_000)
    lengths = (1000, 2000)
    local = [count_flops(shape, length, 0, use_pooler=False).encoder / length for length in lengths]
    assert local[1] - local[0] == 4 * 8 * 1000  # one layer of two is global


def test_steps_learn_the_same(monkeypatch):
    sizes = {"num_layers": 2, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 12, "local_attention": 32}
    found = []
    for is_divided in (True, False):
        if not is_divided:
            monkeypatch.setattr(Window, "find_block", lambda self, length: None)
        backbone = kbf.Backbone("modernbert", vocabulary_size=50, use_pooler=False, **sizes)
        classifier = randomise(kbf.TextClassifier(backbone, num_classes=2, dropout_rate=0.0))
        classifier.compile(optimizer=keras.optimizers.SGD(0.5))
        ids = np.random.default_rng(1).integers(5, 50, (3, LENGTH))
        inputs = {"token_ids": ids, "segment_ids": 0 * ids, "padding_mask": np.minimum(make_mask(), 1)}
        loss = classifier.train_on_batch(inputs, np.array([0, 1, 1]))
        found.append((float(loss if np.isscalar(loss) else loss[0]), [NUMPY(weight) for weight in backbone.weights]))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-5)
    for one, other in zip(found[0][1], found[1][1], strict=True):
        np.testing.assert_allclose(one, other, atol=2e-6)
