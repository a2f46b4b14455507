"""A packed row is its texts alone: outputs, loss and gradients, for every pattern and kind of positions."""

from dataclasses import dataclass

import keras
import numpy as np
import pytest

import keras_bert_flow as kbf
from keras_bert_flow.backends import recorded
from keras_bert_flow.layers import shape as shape_module
from keras_bert_flow.layers.patterns import FULL, LEARNED, Alibi, Blocks, Causal, Rotary, Window
from keras_bert_flow.layers.shape import EncoderShape
from keras_bert_flow.models.backbone import Backbone
from keras_bert_flow.models.families.family import FAMILIES
from tests.oracles.numpy_bert import randomise_weights
from tests.oracles.small_bert import TINY

RNG = np.random.default_rng(3)
LENGTH = 12
TEXTS = [[5, 4], [7, 3, 2], [11]]  # lengths of the texts of each row
RATES = {"dropout_rate": 0.0, "attention_dropout_rate": 0.0}
KINDS = {
    "full": (FULL, LEARNED),
    "window": (Window(2), Rotary(10000.0)),
    "global": (Window(1, num_global=1), LEARNED),
    "blocks": (Blocks(3), Alibi()),
    "causal": (Causal(), Rotary(160000.0)),
}


def make_rows():
    """Return packed inputs, (rows, LENGTH), and the texts alone, (texts, LENGTH), with the place of each."""
    packed, alone = ({name: [] for name in ("token_ids", "segment_ids", "padding_mask")} for _ in range(2))
    places = []
    for row, lengths in enumerate(TEXTS):
        whole = {name: np.zeros(LENGTH, "int32") for name in packed}
        start = 0
        for number, length in enumerate(lengths, 1):
            ids, segments = RNG.integers(1, 16, length), np.arange(length) >= length // 2
            part = slice(start, start + length)
            for place, name, values in ((part, "token_ids", ids), (part, "segment_ids", segments)):
                whole[name][place] = values
            whole["padding_mask"][part] = number
            for name, values in (("token_ids", ids), ("segment_ids", segments), ("padding_mask", np.ones(length))):
                alone[name].append(np.pad(values, (0, LENGTH - length)).astype("int32"))
            places.append((row, part))
            start += length
        for name in packed:
            packed[name].append(whole[name])
    return *({name: np.stack(values) for name, values in rows.items()} for rows in (packed, alone)), places


@dataclass(frozen=True)
class PatternShape(EncoderShape):
    """BERT with a pattern and positions, the lowest block with full attention."""

    kind: str = "full"

    def find_pattern(self, block):
        return KINDS[self.kind][0] if block else FULL

    def find_positions(self, block):
        return KINDS[self.kind][1]


def make_backbone(kind, monkeypatch):
    family = FAMILIES.find("bert")
    monkeypatch.setattr(shape_module, "PACKAGE", "")
    with monkeypatch.context() as patch:
        patch.setitem(family.__dict__, "shape", PatternShape)
        sizes = TINY | RATES | {"num_layers": 2, "max_positions": LENGTH}
        backbone = Backbone("bert", vocabulary_size=16, use_pooler=False, kind=kind, **sizes)
    randomise_weights(backbone, 5)
    return backbone


def compute(backbone, inputs, weights):
    """Return the outputs, and the gradients of their weighted sum, in whatever way the backend has."""
    inputs = {name: keras.ops.convert_to_tensor(values) for name, values in inputs.items()}
    weights = keras.ops.convert_to_tensor(weights)

    def loss_of(outputs):
        return keras.ops.sum(outputs * weights)

    if keras.backend.backend() == "torch":
        import torch

        outputs = backbone(inputs, training=True)["sequence_output"]
        gradients = torch.autograd.grad(loss_of(outputs), [v.value for v in backbone.trainable_variables])
        outputs = outputs.detach()
    elif keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        @tf.function
        def run():
            with tf.GradientTape() as tape:
                outputs = backbone(inputs, training=True)["sequence_output"]
                loss = loss_of(outputs)
            return outputs, tape.gradient(loss, [v.value for v in backbone.trainable_variables])

        outputs, gradients = run()
    else:
        import jax

        fixed = [v.value for v in backbone.non_trainable_variables]

        @jax.jit
        def run(trained):
            def value(trained):
                outputs = backbone.stateless_call(trained, fixed, inputs, training=True)[0]["sequence_output"]
                return loss_of(outputs), outputs

            (_, outputs), gradients = jax.value_and_grad(value, has_aux=True)(trained)
            return outputs, gradients

        outputs, gradients = run([v.value for v in backbone.trainable_variables])
    return [keras.ops.convert_to_numpy(value) for value in (outputs, *map(keras.ops.convert_to_tensor, gradients))]


@pytest.mark.first_form_compiled
@pytest.mark.slow_on_tensorflow
@pytest.mark.parametrize("kind", KINDS)
def test_packed_row_is_its_texts_alone(monkeypatch, kind):
    backbone = make_backbone(kind, monkeypatch)
    packed, alone, places = make_rows()
    of_texts = np.zeros((len(places), LENGTH, backbone.hidden_dim), "float32")
    of_rows = np.zeros((len(TEXTS), LENGTH, backbone.hidden_dim), "float32")
    for text, (row, part) in enumerate(places):
        length = part.stop - part.start
        of_texts[text, :length] = of_rows[row, part] = RNG.normal(size=(length, backbone.hidden_dim))
    found, *gradients = compute(backbone, packed, of_rows)
    wanted, *expected = compute(backbone, alone, of_texts)
    for text, (row, part) in enumerate(places):
        # Float32 sums over rows of another width, and rotations by other angles.
        np.testing.assert_allclose(found[row, part], wanted[text, : part.stop - part.start], atol=1e-5)
    for variable, one, other in zip(backbone.trainable_variables, gradients, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4, err_msg=variable.path)  # sums of up to 100


@pytest.mark.slow_compiled
def test_texts_of_a_row_do_not_see_each_other(monkeypatch):
    backbone, (packed, _, _) = make_backbone("full", monkeypatch), make_rows()
    before = keras.ops.convert_to_numpy(backbone(packed)["sequence_output"])
    changed = dict(packed, token_ids=np.where(packed["padding_mask"] == 2, 9, packed["token_ids"]))
    after = keras.ops.convert_to_numpy(backbone(changed)["sequence_output"])
    untouched = packed["padding_mask"] == 1
    np.testing.assert_allclose(after[untouched], before[untouched], atol=1e-6)  # the same sums, with other zeros
    assert np.abs(after - before)[packed["padding_mask"] == 2].max() > 0.1


def make_masked_lm(**sizes):
    model = kbf.MaskedLM(Backbone("bert", vocabulary_size=16, use_pooler=False, **TINY | RATES | sizes))
    randomise_weights(model, 7)
    return model


@pytest.mark.slow_compiled
def test_loss_of_a_packed_row_is_that_of_its_texts():
    """Three masks a row here, and as many over the texts that it holds."""
    model, (packed, alone, places) = make_masked_lm(max_positions=LENGTH), make_rows()
    model.compile()
    masked = [[0, 6, 8], [0, 4, 11], [0, 5, 10]]  # the texts of the rows have 5 and 4, 7 and 3 and 2, 11 tokens
    labels = RNG.integers(1, 16, (3, 3)).astype("int32")
    rows = dict(packed, mask_positions=np.array(masked, "int32"))
    positions, ids, weights = (np.zeros((len(places), 3), kind) for kind in ("int32", "int32", "float32"))
    for text, (row, part) in enumerate(places):
        chosen = [number for number, place in enumerate(masked[row]) if part.start <= place < part.stop]
        for slot, number in enumerate(chosen):
            positions[text, slot], ids[text, slot] = masked[row][number] - part.start, labels[row, number]
            weights[text, slot] = 1.0
    expected = model.evaluate(alone | {"mask_positions": positions}, ids, sample_weight=weights, verbose=0)
    found = model.evaluate(rows, labels, sample_weight=np.ones((3, 3), "float32"), verbose=0)
    np.testing.assert_allclose(found, expected, rtol=1e-5)  # float32 sums in another order
    assert found[0] > 0.1 and weights.sum() == 9


@pytest.mark.any_backend
def test_heads_for_whole_texts_refuse_packed_rows():
    packed, _, _ = make_rows()
    classifier = kbf.TextClassifier(Backbone("bert", vocabulary_size=16, **TINY), num_classes=2)
    with pytest.raises(ValueError, match=r"must be one text.*`padding_mask` of 2 in row 0. Give each text a row"):
        classifier.predict(packed, verbose=0)
    tagger = kbf.TokenClassifier(Backbone("bert", vocabulary_size=16, use_pooler=False, **TINY), num_classes=2)
    assert tagger.predict(packed, verbose=0).shape == (3, LENGTH, 2)


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="recorded on PyTorch")
@pytest.mark.parametrize("is_compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_recorded_steps_take_packed_rows(is_compiled, monkeypatch):
    if not is_compiled:
        monkeypatch.setattr(recorded, "_compile", lambda graph, given: graph)
    packed, alone, _ = make_rows()
    plain = {name: values[:3] for name, values in alone.items()}
    positions, labels = np.array([[0, 2]] * 3, "int32"), np.array([[3, 4]] * 3, "int32")
    weights = np.ones((3, 2), "float32")
    batches = [dict(rows, mask_positions=positions) for rows in (packed, plain, packed, plain, packed, packed)]
    losses = []
    for is_recorded in (False, True):
        model = make_masked_lm(max_positions=LENGTH)
        model.compile(optimizer=keras.optimizers.SGD(0.1), jit_compile=is_recorded)
        losses.append([model.train_on_batch(rows, labels, weights, return_dict=True)["loss"] for rows in batches])
    np.testing.assert_allclose(*losses, rtol=1e-6)
    assert len(model.train_function._programs) == 2  # one for each kind of rows
