"""Every layer is buildable from shapes, serialisable and sound in mixed precision."""

import numpy as np
import pytest

from keras_bert_flow.layers.attention import MultiHeadSelfAttention
from keras_bert_flow.layers.dropout import Dropout
from keras_bert_flow.layers.embeddings import BertEmbeddings
from keras_bert_flow.layers.encoder import EncoderBlock
from keras_bert_flow.layers.groups import ChoiceScores, MergeTexts, SplitTexts
from keras_bert_flow.layers.heads import MaskedTokenTransform, OutputBias, Pooler, SpanScores
from keras_bert_flow.layers.pooling import TokenPooling
from tests.oracles.layer_contract import layer_contract

RNG = np.random.default_rng(0)
HIDDEN = RNG.normal(size=(3, 5, 12)).astype("float32")
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0, 0, 0, 0, 0]], "int32")
PAIRS = np.stack([MASK, MASK[::-1]], axis=1)
POSITIONS = np.array([[4, 0], [1, 1], [0, 3]], "int32")


@pytest.mark.parametrize(
    ("layer", "inputs"),
    [
        (lambda: BertEmbeddings(max_positions=7, num_segments=3, name="embeddings"), (HIDDEN, MASK)),
        (lambda: MultiHeadSelfAttention(12, 3, name="attention"), (HIDDEN, MASK)),
        (lambda: EncoderBlock(12, 3, 20, hidden_act="gelu_tanh", name="block"), (HIDDEN, MASK)),
        (lambda: Pooler(12, name="pooler"), (HIDDEN,)),
        (lambda: MaskedTokenTransform(12, name="mlm_transform"), (HIDDEN, POSITIONS)),
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
    layer_contract(layer(), *inputs)
