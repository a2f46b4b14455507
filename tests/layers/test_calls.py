"""On PyTorch the layers of a block are called without Keras' look at their arguments; nothing else changes."""

import keras
import numpy as np
import pytest

from keras_bert_flow.backends import kernels
from keras_bert_flow.layers import attention, encoder
from keras_bert_flow.models.backbone import BertBackbone
from tests.oracles.small_bert import TINY

pytestmark = pytest.mark.skipif(keras.backend.backend() != "torch", reason="the others trace a step")
IDS = {name: np.ones((2, 5), "int32") for name in ("token_ids", "segment_ids", "padding_mask")}


def test_outputs_have_the_bits_of_called_layers(monkeypatch):
    backbone = BertBackbone(vocabulary_size=50, **TINY)
    found = backbone(IDS)["sequence_output"]
    for module in (kernels, attention, encoder):
        monkeypatch.setattr(module, "call_of", lambda layer: layer)
    np.testing.assert_array_equal(found.detach(), backbone(IDS)["sequence_output"].detach())


@pytest.mark.parametrize("kind", ["forward_hook", "forward_pre_hook"])
@pytest.mark.parametrize("name", ["attention", "intermediate", "attention_layer_norm"])
def test_hooks_of_pytorch_are_called(name, kind):
    backbone, seen = BertBackbone(vocabulary_size=50, **TINY), []
    getattr(getattr(backbone.blocks[0], name), f"register_{kind}")(lambda *given: seen.append(kind))
    backbone(IDS)
    assert seen == [kind]


@pytest.mark.parametrize(("policy", "is_direct"), [("float32", True), ("mixed_bfloat16", False)])
def test_layers_that_cast_their_weights_are_called_by_keras(policy, is_direct):
    block = BertBackbone(vocabulary_size=50, **TINY, dtype=policy).blocks[0]
    assert (kernels.call_of(block.output_dense) is not block.output_dense) == is_direct


def test_quantized_layers_are_called_by_keras():
    backbone = BertBackbone(vocabulary_size=50, **TINY)
    layer = backbone.blocks[0].output_dense
    layer.quantize("int8")
    assert kernels.call_of(layer) is layer
