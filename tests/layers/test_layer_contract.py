"""Every layer is buildable from shapes, serialisable and sound in mixed precision."""

from dataclasses import replace

import numpy as np
import pytest

from keras_bert_flow.layers.attention import MultiHeadSelfAttention
from keras_bert_flow.layers.dense import Dropout
from keras_bert_flow.layers.embeddings import BertEmbeddings
from keras_bert_flow.layers.encoder import ChoiceScores, EncoderBlock, MergeTexts, SplitTexts
from keras_bert_flow.layers.heads import MaskedTokenTransform, OutputBias, Pooler, SpanScores, TokenPooling
from keras_bert_flow.layers.shape import EncoderShape
from tests.contracts import run_layer_test

SHAPE = EncoderShape(vocabulary_size=50, num_layers=2, num_heads=3, hidden_dim=12, intermediate_dim=20)
RNG = np.random.default_rng(0)
HIDDEN = RNG.normal(size=(3, 5, 12)).astype("float32")
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0, 0, 0, 0, 0]], "int32")
PAIRS = np.stack([MASK, MASK[::-1]], axis=1)
POSITIONS = np.array([[4, 0], [1, 1], [0, 3]], "int32")


@pytest.mark.parametrize(
    ("layer", "inputs"),
    [
        (lambda: BertEmbeddings(replace(SHAPE, max_positions=7, num_segments=3), name="embeddings"), (HIDDEN, MASK)),
        (lambda: MultiHeadSelfAttention(SHAPE, name="attention"), (HIDDEN, MASK)),
        (lambda: EncoderBlock(replace(SHAPE, hidden_act="gelu_tanh"), name="block"), (HIDDEN, MASK)),
        (lambda: Pooler(SHAPE, name="pooler"), (HIDDEN,)),
        (lambda: MaskedTokenTransform(SHAPE, name="mlm_transform"), (HIDDEN, POSITIONS)),
        (lambda: OutputBias(name="mlm"), (HIDDEN,)),
        (lambda: SpanScores(name="span_scores"), (HIDDEN[..., :2], MASK)),
        (lambda: TokenPooling("max", normalize=True, name="pooling"), (HIDDEN, MASK)),
        (lambda: MergeTexts(name="merge"), (HIDDEN,)),
        (lambda: ChoiceScores(name="choice_scores"), (HIDDEN[:, :2, 0].reshape(6, 1), PAIRS)),
        (lambda: SplitTexts(name="split"), (HIDDEN[:, :2].reshape(6, 12), PAIRS)),
        (lambda: Dropout(0.5, name="dropout"), (HIDDEN,)),
    ],
    ids=lambda value: value().name if callable(value) else "",
)
def test_layer_keeps_contract(layer, inputs):
    run_layer_test(layer(), *inputs)
