"""The pre-training model: head logits, losses without filler, a step in each precision."""

import keras
import numpy as np
import pytest

from keras_bert_flow.models.backbone import BertBackbone
from keras_bert_flow.models.pretraining.masked_lm import BertPretrainer
from tests.oracles import numpy_bert
from tests.oracles.small_bert import SMALL, make_inputs

DTYPES = (
    *(pytest.param(name, marks=pytest.mark.any_backend) for name in ("float32", "mixed_bfloat16")),
    "mixed_float16",
)


def make_pretrainer(**settings):
    model = BertPretrainer(BertBackbone(**SMALL, **settings))
    numpy_bert.randomise_weights(model, seed=6)
    return model


def make_batch(masks_per_sequence=3):
    inputs = make_inputs(masks_per_sequence=masks_per_sequence)
    rng = np.random.default_rng(7)
    labels = {"mlm": rng.integers(0, 50, (4, masks_per_sequence)), "nsp": np.array([0, 1, 1, 0])}
    weights = {"mlm": np.array([[1, 1, 1], [1, 1, 0], [1, 0, 0], [0, 0, 0]], "float32"), "nsp": np.ones(4, "float32")}
    return inputs, labels, weights


@pytest.mark.parametrize("hidden_act", ["gelu", "gelu_tanh"])
def test_pretrainer_logits_agree_with_numpy(hidden_act):
    model = make_pretrainer(hidden_act=hidden_act)
    inputs = make_inputs(masks_per_sequence=3)
    weights = numpy_bert.weights_of(model)
    states, pooled = numpy_bert.forward(weights, inputs, 2, 3, hidden_act)
    mlm, nsp = numpy_bert.pretraining_logits(weights, states[-1], pooled, inputs["mask_positions"], hidden_act)
    outputs = model.predict(inputs, verbose=0)
    # As for the backbone, and one more sum of 24 terms.
    np.testing.assert_allclose(outputs["mlm"], mlm, atol=1e-5)
    np.testing.assert_allclose(outputs["nsp"], nsp, atol=1e-5)


@pytest.mark.slow_compiled
def test_pretrainer_default_loss_is_mean_over_real_predictions():
    model = make_pretrainer()
    model.compile()
    inputs, labels, weights = make_batch()
    outputs = model.predict(inputs, verbose=0)
    logs = model.evaluate(inputs, labels, sample_weight=weights, verbose=0, return_dict=True)
    mlm = outputs["mlm"].astype("float64")
    entropy = np.log(np.exp(mlm).sum(-1)) - np.take_along_axis(mlm, labels["mlm"][..., None], -1)[..., 0]
    expected = (entropy * weights["mlm"]).sum() / 6
    # float32 logits of up to 5, 6 terms.
    assert logs["mlm_loss"] == pytest.approx(expected, abs=1e-5)
    hits = (outputs["mlm"].argmax(-1) == labels["mlm"]) * weights["mlm"]
    assert logs["mlm_accuracy"] == pytest.approx(hits.sum() / 6, abs=1e-6)
    assert logs["nsp_accuracy"] == pytest.approx((outputs["nsp"].argmax(-1) == labels["nsp"]).mean(), abs=1e-6)
    assert logs["loss"] == pytest.approx(logs["mlm_loss"] + logs["nsp_loss"], abs=1e-5)


@pytest.mark.slow_compiled
@pytest.mark.slow_on_tensorflow
def test_pretrainer_filler_leaves_loss_unchanged():
    model = make_pretrainer()
    model.compile()
    inputs, labels, weights = make_batch()
    before = model.evaluate(inputs, labels, sample_weight=weights, verbose=0, return_dict=True)
    filler = np.full((4, 5), 7)
    inputs["mask_positions"] = np.concatenate([inputs["mask_positions"], filler.astype("int32")], axis=1)
    labels["mlm"] = np.concatenate([labels["mlm"], filler], axis=1)
    weights["mlm"] = np.concatenate([weights["mlm"], np.zeros((4, 5), "float32")], axis=1)
    after = model.evaluate(inputs, labels, sample_weight=weights, verbose=0, return_dict=True)
    # The same sum over another number of terms: float32 rounding of losses near 5.
    assert after == pytest.approx(before, abs=2e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.slow_compiled
def test_pretrainer_step_is_finite_with_fully_padded_row(dtype):
    model = make_pretrainer(dtype=dtype)
    model.compile(optimizer=keras.optimizers.SGD(0.1))
    before = model.get_weights()
    inputs, labels, weights = make_batch()
    weights["mlm"][3] = 1.0  # the padded row takes part
    logs = model.train_on_batch(inputs, labels, sample_weight=weights, return_dict=True)
    assert np.isfinite(logs["loss"])
    changed = [np.abs(old - new).max() for old, new in zip(before, model.get_weights(), strict=True)]
    assert np.isfinite(changed).all()
    # A bias on keys moves every score of a query alike and so has no gradient, but it is a part of the fused bias.
    still = [v.path for v, change in zip(model.weights, changed, strict=True) if change == 0]
    assert still == []


@pytest.mark.any_backend
@pytest.mark.parametrize("dtype", DTYPES)
def test_pretrainer_logits_are_float32(dtype):
    model = make_pretrainer(dtype=dtype)
    outputs = model(make_inputs(masks_per_sequence=3))
    assert {keras.backend.standardize_dtype(value.dtype) for value in outputs.values()} == {"float32"}
    assert {variable.dtype for variable in model.weights} == {"float32"}


@pytest.mark.slow_on_tensorflow
def test_pretrainer_bfloat16_is_near_float32():
    model = make_pretrainer()
    mixed = BertPretrainer(BertBackbone(**SMALL, dtype="mixed_bfloat16"))
    mixed.set_weights(model.get_weights())
    inputs = make_inputs(masks_per_sequence=3)
    exact, rounded = (m.predict(inputs, verbose=0)["mlm"] for m in (model, mixed))
    # 8 bits: 0.4 % of values up to 4 at each of some ten roundings, mostly cancelling.
    assert 0 < np.abs(exact - rounded).max() < 0.2


def test_pretrainer_ties_decoder_to_token_embedding():
    model = make_pretrainer()
    inputs = make_inputs(masks_per_sequence=3)
    before = model.predict(inputs, verbose=0)["mlm"]
    table = model.backbone.token_embedding.embeddings
    unused = (set(range(50)) - set(inputs["token_ids"].ravel().tolist())).pop()
    value = np.array(keras.ops.convert_to_numpy(table))
    value[unused] += 1.0
    table.assign(value)
    difference = np.abs(model.predict(inputs, verbose=0)["mlm"] - before).max(axis=(0, 1))
    assert np.flatnonzero(difference).tolist() == [unused]


@pytest.mark.any_backend
def test_pretrainer_default_optimizer_decays_matrices_only():
    model = make_pretrainer()
    model.compile()
    model.optimizer.build(model.trainable_variables)
    before = [np.array(keras.ops.convert_to_numpy(v.value)) for v in model.trainable_variables]
    model.optimizer.apply([keras.ops.zeros_like(v.value) for v in model.trainable_variables])
    after = [keras.ops.convert_to_numpy(v.value) for v in model.trainable_variables]
    triples = zip(model.trainable_variables, before, after, strict=True)
    decayed = [v.path for v, old, new in triples if not np.array_equal(old, new)]  # only decay moves them
    assert {path.rsplit("/")[-1] for path in decayed} == {
        "kernel",
        "embeddings",
        "position_embedding",
        "segment_embedding",
    }


def test_pretrainer_compile_keeps_what_is_given():
    model = make_pretrainer()
    model.compile(optimizer="sgd", loss={"mlm": "mse", "nsp": "mse"}, weighted_metrics=[])
    assert isinstance(model.optimizer, keras.optimizers.SGD)
    assert model.loss == {"mlm": "mse", "nsp": "mse"}


@pytest.mark.any_backend
def test_pretrainer_config_round_trip():
    model = make_pretrainer(hidden_act="gelu_tanh")
    twin = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(model))
    twin.set_weights(model.get_weights())
    inputs = make_inputs(masks_per_sequence=3)
    ours, theirs = (m.predict(inputs, verbose=0)["mlm"] for m in (model, twin))
    np.testing.assert_array_equal(ours, theirs)
