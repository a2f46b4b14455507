"""Unpadding: encoder blocks compute no padding in training, and no output or gradient of a token changes."""

import keras
import numpy as np
import pytest

from keras_bert_flow.backends.runtime import is_on_processor
from keras_bert_flow.backends.unpadding import map_rows, pad_inputs, unpad_inputs
from keras_bert_flow.layers import masks
from keras_bert_flow.layers.masks import PadInputs, UnpadInputs
from keras_bert_flow.models.backbone import BertBackbone
from tests.contracts import run_layer_test
from tests.oracles.small_bert import TINY

RNG = np.random.default_rng(1)
# Rows in any order, one without tokens, and one whose mask is not a prefix.
MASK = np.array([[1, 1, 1, 0, 0, 0], [1] * 6, [0] * 6, [1, 0, 1, 1, 0, 0], [1] + [0] * 5], "int32")
ON_TORCH = pytest.mark.skipif(
    keras.backend.backend() != "torch" or not is_on_processor(), reason="unpadded on PyTorch alone, on a processor"
)


@pytest.mark.parametrize("layer", [UnpadInputs, PadInputs])
def test_unpadding_layers_keep_the_contract(layer):
    run_layer_test(layer(name="layer"), RNG.normal(size=(5, 6, 4)).astype("float32"), MASK)


@ON_TORCH
def test_tokens_without_padding_are_the_real_ones_row_by_row():
    hidden = RNG.normal(size=(5, 6, 4)).astype("float32")
    mask = keras.ops.convert_to_tensor(MASK)
    tokens = unpad_inputs(keras.ops.convert_to_tensor(hidden), mask)
    np.testing.assert_array_equal(tokens.numpy(), hidden[MASK == 1])
    np.testing.assert_array_equal(pad_inputs(tokens, mask).numpy(), hidden * MASK[..., None])


@ON_TORCH
def test_rows_are_mapped_in_groups_as_wide_as_their_longest():
    tokens, shapes = keras.ops.convert_to_tensor(RNG.normal(size=(13, 4)).astype("float32")), []

    def add_row_sums(rows, mask):
        shapes.append(tuple(rows.shape))
        assert tuple(mask.shape) == tuple(rows.shape[:2])
        return rows + rows.sum(dim=1, keepdim=True)

    found = map_rows(add_row_sums, tokens, keras.ops.convert_to_tensor(MASK))
    ends = np.cumsum(MASK.sum(axis=1))[:-1]
    expected = np.concatenate([part + part.sum(axis=0) for part in np.split(tokens.numpy(), ends)])
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-6)  # sums in another order
    assert shapes == [(2, 6, 4), (1, 4, 4), (1, 1, 4)]  # the row without tokens is in no group


def run_step(backbone, is_unpaddable, monkeypatch):
    """Return outputs at real tokens, gradients, and how many positions the first block was given."""
    import torch

    counts = []
    block = backbone.get_layer("encoder_block_0").intermediate
    with monkeypatch.context() as patch:
        if not is_unpaddable:
            patch.setattr(masks, "is_unpaddable", lambda mask: False)
        call = block.call
        patch.setattr(block, "call", lambda inputs: counts.append(inputs.shape[:-1]) or call(inputs))
        ids = {"token_ids": MASK * 7, "segment_ids": np.zeros_like(MASK), "padding_mask": MASK}
        outputs = backbone(ids, training=True)
    tokens = outputs["sequence_output"][torch.tensor(MASK == 1)]
    weights = torch.tensor(np.random.default_rng(2).normal(size=tokens.shape), dtype=tokens.dtype)
    values = [variable.value for variable in backbone.trainable_variables]
    loss = (tokens * weights).sum() + outputs["pooled_output"][torch.tensor(MASK.any(axis=1))].sum()
    gradients = torch.autograd.grad(loss, values)
    return tokens.detach().numpy(), [gradient.numpy() for gradient in gradients], counts


@ON_TORCH
@pytest.mark.parametrize("is_rematerialised", [False, True])
def test_step_without_padding_is_that_of_padded_rows(monkeypatch, is_rematerialised):
    rates = {"dropout_rate": 0.0, "attention_dropout_rate": 0.0}
    backbone = BertBackbone(vocabulary_size=16, **TINY | {"num_layers": 2}, max_positions=8, **rates)
    backbone.set_rematerialised(is_rematerialised)
    for variable in backbone.trainable_variables:
        variable.assign(variable + RNG.normal(scale=0.3, size=variable.shape))
    padded, padded_gradients, padded_counts = run_step(backbone, False, monkeypatch)
    unpadded, gradients, counts = run_step(backbone, True, monkeypatch)
    assert counts[0] == (13,) and padded_counts[0] == (5, 6)
    np.testing.assert_allclose(unpadded, padded, atol=1e-5)
    for variable, found, expected in zip(backbone.trainable_variables, gradients, padded_gradients, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4, err_msg=variable.path)  # of 0.1 to 100


@ON_TORCH
def test_predictions_and_whole_rows_keep_their_shape():
    full, hidden = np.ones((2, 3), "int32"), RNG.normal(size=(2, 3, 4)).astype("float32")
    assert UnpadInputs()(hidden, full, training=True).shape == (2, 3, 4)
    full[0, 2] = 0
    assert UnpadInputs()(hidden, full, training=False).shape == (2, 3, 4)
    assert UnpadInputs()(hidden, full, training=True).shape == (5, 4)
