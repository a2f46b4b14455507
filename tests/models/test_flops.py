"""The count of operations, against PyTorch's own counter over `transformers` and over our model."""

import keras
import numpy as np
import pytest

from keras_bert_flow.layers.shape import EncoderShape
from keras_bert_flow.models.backbone import BertBackbone
from keras_bert_flow.models.pretraining.bag_of_words import BagOfWordsPretrainer
from keras_bert_flow.models.pretraining.masked_lm import BertPretrainer, MaskedLM
from keras_bert_flow.models.sizes import count_flops
from tests.oracles.small_bert import SMALL

LENGTH, MASKS, BATCH = 16, 5, 3


def count_of_transformers(backward):
    """Count one batch of `BertForPreTraining`, in which every position meets the vocabulary."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from torch.utils.flop_counter import FlopCounterMode

    config = transformers.BertConfig(
        vocab_size=SMALL["vocabulary_size"],
        hidden_size=SMALL["hidden_dim"],
        num_hidden_layers=SMALL["num_layers"],
        num_attention_heads=SMALL["num_heads"],
        intermediate_size=SMALL["intermediate_dim"],
        max_position_embeddings=SMALL["max_positions"],
        attn_implementation="eager",
    )
    model = transformers.BertForPreTraining(config)
    ids = torch.zeros((BATCH, LENGTH), dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        outputs = model(ids)
        if backward:
            (outputs.prediction_logits.sum() + outputs.seq_relationship_logits.sum()).backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("backward", [False, True])
def test_count_is_that_of_torch_over_transformers(backward):
    # It looks up segments and masks nothing: no products for either, and as many predictions as tokens.
    ours = count_flops(EncoderShape(**SMALL), LENGTH, LENGTH)
    without = ours.gather + ours.embeddings
    ours = ours.training - 2 * without if backward else ours.forward - without
    assert BATCH * ours == count_of_transformers(backward)


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="the counter is PyTorch's")
@pytest.mark.parametrize(("use_pooler", "bag_of_words"), [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("backward", [False, True])
def test_count_is_that_of_torch_over_our_model(use_pooler, bag_of_words, backward):
    from torch.utils.flop_counter import FlopCounterMode

    backbone = BertBackbone(**SMALL, use_pooler=use_pooler)
    model = BertPretrainer(backbone) if use_pooler else MaskedLM(backbone)
    model = BagOfWordsPretrainer(model) if bag_of_words else model
    shapes = dict.fromkeys(("token_ids", "segment_ids", "padding_mask"), (BATCH, LENGTH))
    x = {name: np.ones(shape, "int32") for name, shape in (shapes | {"mask_positions": (BATCH, MASKS)}).items()}
    with FlopCounterMode(display=False) as counter:
        outputs = model(x, training=True)
        if backward:
            sum(output.sum() for output in outputs.values()).backward()
    flops = count_flops(backbone.shape, LENGTH, MASKS, use_pooler, bag_of_words)
    assert BATCH * (flops.training if backward else flops.forward) == counter.get_total_flops()


def test_count_of_bert_base_is_near_six_times_its_weights():
    flops = count_flops(EncoderShape(30522, 12, 12, 768, 3072), sequence_length=128, masks_per_sequence=20)
    multiplied = 12 * (4 * 768**2 + 2 * 768 * 3072)
    attention = 12 * 12 * 768 * 128  # Chowdhery et al. 2022, appendix B
    per_token = flops.training / 128
    # The rest is the heads': 20 predictions for 128 tokens.
    assert per_token == pytest.approx(6 * multiplied + attention + 6 * 20 / 128 * 30522 * 768, rel=5e-3)
