"""The losses of layers, TinyBERT's, against NumPy, and what they move."""

import keras
import numpy as np
import pytest

import keras_bert_flow as kbf
from keras_bert_flow.layers.encoder import ScoredBlock
from keras_bert_flow.models.pretraining.distiller import AttentionScoreLosses, LayerStateLosses
from tests.oracles import numpy_bert
from tests.oracles.small_bert import SMALL, make_inputs
from tests.oracles.task_models import call

STILL = {"dropout_rate": 0.0, "attention_dropout_rate": 0.0}
LAYERS = {"attention_score_weight": 1.0, "layer_state_weight": 1.0}
LAYERS_ALONE = {"soft_target_weight": 0.0, "masked_lm_weight": 0.0, "hidden_state_weight": 0.0} | LAYERS
NARROW = {"hidden_dim": 12, "intermediate_dim": 20}
DEEP = {"num_layers": 4}  # two layers of a teacher for each of its student
HEADS = SMALL["num_heads"]


def make_encoder(seed=1, family="bert", **settings):
    encoder = kbf.Backbone(family, use_pooler=False, **SMALL | STILL | settings)
    numpy_bert.randomise_weights(encoder, seed)
    return encoder


def make_distiller(student=None, teacher=None, **weights):
    model = kbf.Distiller(
        student or make_encoder(**NARROW), teacher or make_encoder(5, **DEEP), **LAYERS_ALONE | weights
    )
    if "layers" in model.output:
        numpy_bert.randomise_weights(model.get_layer("layers"), 3)
    return model


def make_batch():
    x = make_inputs()
    y = dict.fromkeys(("attention", "layers"), np.zeros((len(x["token_ids"]), 1), "int32"))
    return x, y, {name: np.ones_like(value, "float32") for name, value in y.items()}


def find_layers(encoder, x):
    """Return the hidden states and the attention scores of an encoder, masked keys as 0, by NumPy."""
    weights = numpy_bert.weights_of(encoder)
    states, _ = numpy_bert.forward(weights, x, encoder.num_layers, HEADS)
    scores = numpy_bert.attention_scores(weights, states, x["padding_mask"], HEADS)
    return states, [np.where(each <= -100, 0.0, each) for each in scores]


def find_losses(model, x):
    """Return both losses of each row of a batch, by NumPy."""
    (states, scores), (targets, known) = (find_layers(encoder, x) for encoder in (model.student, model.teacher))
    kernel, bias = model.get_layer("layers").get_weights()
    attention = sum(((scores[layer] - known[2 * layer + 1]) ** 2).mean((1, 2, 3)) for layer in range(2))
    projected = [state.astype("float64") @ kernel + bias for state in states]
    return attention, sum(((projected[layer] - targets[2 * layer]) ** 2).mean((1, 2)) for layer in range(3))


@pytest.mark.slow_compiled
def test_losses_are_those_of_numpy():
    model, (x, _, _) = make_distiller(), make_batch()
    # A call of JAX alone compiles each operation.
    outputs = model.predict(x, verbose=0) if keras.backend.backend() == "jax" else call(model, x)
    for name, expected in zip(("attention", "layers"), find_losses(model, x), strict=True):
        assert outputs[name].shape == (4, 1, 1)
        # float32 roundings of 6e-8 through four layers with random weights
        np.testing.assert_allclose(outputs[name][:, 0, 0], expected, rtol=1e-4, err_msg=name)


def test_scores_far_below_are_those_of_masked_keys():
    ours = np.array([[[[3.0, -100.0], [-1e9, -99.0]]]], "float32")
    theirs = np.array([[[[1.0, -1e9], [2.0, -98.0]]]], "float32")
    found = keras.ops.convert_to_numpy(AttentionScoreLosses()([ours, ours], [theirs, ours]))
    assert found.tolist() == [[[(4 + 0 + 4 + 1) / 4]]]


@pytest.mark.any_backend
def test_training_and_evaluation_have_the_losses_of_the_batch():
    """In training other models leave out padding, which counts here; the mean is over rows, the total is weighted."""
    model, (x, y, weights) = make_distiller(attention_score_weight=0.5), make_batch()
    model.compile(optimizer=keras.optimizers.SGD(0.0))
    attention, layers = (values.mean() for values in find_losses(model, x))
    for measure in (model.evaluate, model.train_on_batch):
        options = {"verbose": 0} if measure == model.evaluate else {}
        logs = measure(x, y, sample_weight=weights, return_dict=True, **options)
        assert logs["attention_loss"] == pytest.approx(attention, rel=1e-4)
        assert logs["layers_loss"] == pytest.approx(layers, rel=1e-4)
        assert logs["loss"] == pytest.approx(0.5 * attention + layers, rel=1e-4)


@pytest.mark.any_backend
@pytest.mark.parametrize("family", ["bert", "albert", "mobilebert", "modernbert"])
@pytest.mark.first_form
def test_scored_model_computes_what_its_encoder_does(family):
    options = {"mobilebert": {"num_heads": 4, "bottleneck_dim": 16}}.get(family, {})
    encoder = make_encoder(family=family, **options)
    x = make_inputs()
    found = encoder.make_scored_model().predict(x, verbose=0)
    states = encoder.make_hidden_states_model().predict(x, verbose=0)
    for one, other in zip(found["hidden_states"], states, strict=True):
        np.testing.assert_array_equal(one, other)
    assert len(found["attention_scores"]) == encoder.num_layers
    for scores in found["attention_scores"]:
        assert scores.dtype == np.float32 and scores.shape == (4, encoder.num_heads, 9, 9)
        is_masked = np.broadcast_to(x["padding_mask"][:, None, None] == 0, scores.shape)
        np.testing.assert_array_equal(scores < -1e8, is_masked)


@pytest.mark.any_backend
@pytest.mark.parametrize("part", ["nothing", "blocks", "attention"])
@pytest.mark.first_form
def test_student_and_projection_learn(part):
    student, teacher = make_encoder(**NARROW), make_encoder(5, **DEEP)
    student.set_rematerialised(part)
    model, (x, y, weights) = make_distiller(student, teacher), make_batch()
    trained = [*student.weights, *model.get_layer("layers").weights]
    assert {weight.path for weight in model.trainable_variables} == {weight.path for weight in trained}
    assert len(model.trainable_variables) == len(trained) and model.find_published() is student
    model.compile(optimizer=keras.optimizers.SGD(0.1))
    known, before = teacher.get_weights(), [np.array(weight) for weight in trained]
    model.train_on_batch(x, y, sample_weight=weights)
    assert all(map(np.array_equal, known, teacher.get_weights()))
    assert all(np.abs(old - np.array(new)).max() > 0 for old, new in zip(before, trained, strict=True))


@pytest.mark.any_backend
def test_packed_texts_have_the_scores_that_they_have_alone():
    model, (x, _, _) = make_distiller(layer_state_weight=0.0), make_batch()
    alone = {name: value[:2, :4] for name, value in x.items()}  # two texts of four tokens
    packed = {name: value.reshape(1, 8) for name, value in alone.items()}
    packed["padding_mask"] = packed["padding_mask"] * np.repeat([[1, 2]], 4, axis=1).astype("int32")
    # each is a quarter of the pairs of the row
    expected = call(model, alone)["attention"].sum() / 4
    np.testing.assert_allclose(call(model, packed)["attention"].sum(), expected, rtol=1e-4)


@pytest.mark.any_backend
def test_layers_go_together_with_predictions():
    student, teacher = (kbf.MaskedLM(make_encoder(seed)) for seed in (1, 5))
    x = make_inputs(masks_per_sequence=3)
    both, plain = kbf.Distiller(student, teacher, **LAYERS), kbf.Distiller(student, teacher)
    found, expected = both.predict(x, verbose=0), plain.predict(x, verbose=0)
    assert {*found} == {*expected, "attention", "layers"}
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)


@pytest.mark.any_backend
@pytest.mark.parametrize("has_head", [False, True])
@pytest.mark.first_form
def test_configuration_comes_back(has_head):
    models = make_encoder(**NARROW), make_encoder(5, **DEEP)
    models = tuple(map(kbf.MaskedLM, models)) if has_head else models
    model, x = make_distiller(*models), make_inputs(masks_per_sequence=3 if has_head else None)
    twin = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(model))
    twin.set_weights(model.get_weights())
    for name, value in call(model, x).items():
        np.testing.assert_array_equal(value, call(twin, x)[name])


@pytest.mark.any_backend
def test_layers_come_back_from_their_configurations():
    states = [np.ones((2, 3, 12), "float32")]
    mask, bias = np.ones((2, 3), "int32"), np.zeros((2, 1, 1, 3), "float32")
    block = make_encoder(**NARROW).blocks[0]
    cases = [
        (LayerStateLosses(24, 0.1, "mixed_bfloat16", dtype="float32"), ([states[0]], [np.ones((2, 3, 24), "float32")])),
        (ScoredBlock(block, name="scored"), (states[0], mask, bias)),
    ]
    for layer, inputs in cases:
        expected = layer(*inputs)
        twin = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
        twin(*inputs)  # builds it
        twin.set_weights(layer.get_weights())
        assert twin.get_config() == layer.get_config()
        found = twin(*inputs)
        for one, other in zip(keras.tree.flatten(found), keras.tree.flatten(expected), strict=True):
            np.testing.assert_array_equal(*map(keras.ops.convert_to_numpy, (one, other)))


@pytest.mark.any_backend
def test_losses_are_float32_in_mixed_precision():
    exact, (x, _, _) = make_distiller(), make_batch()
    encoders = [make_encoder(dtype="mixed_bfloat16", **NARROW), make_encoder(5, dtype="mixed_bfloat16", **DEEP)]
    mixed = make_distiller(*encoders)
    assert mixed.get_layer("layers").projection.compute_dtype == "bfloat16"
    found, expected = call(mixed, x), call(exact, x)
    for name in ("attention", "layers"):
        assert found[name].dtype == np.float32
        np.testing.assert_allclose(found[name], expected[name], rtol=0.1)  # 8 bits through four layers


@pytest.mark.any_backend
def test_what_cannot_be_compared_is_refused():
    teacher = make_encoder(5, **DEEP)
    for student, weights, message in (
        ({"num_heads": 4}, {}, "of as many heads to be compared. Received: num_heads=4, the teacher's 3"),
        ({"num_layers": 3}, {}, "divides its teacher's. Received: num_layers=3, the teacher's 4"),
        (NARROW, {"masked_lm_weight": 2.0}, "no loss of its predictions. Received: soft_target_weight=0.0, masked_lm"),
        (NARROW, {"hidden_state_weight": 1.0}, "of one width to be compared"),
    ):
        with pytest.raises(ValueError, match=message):
            make_distiller(make_encoder(**student), teacher, **weights)
    make_distiller(make_encoder(num_heads=4), teacher, attention_score_weight=0.0)
    with pytest.raises(ValueError, match="without a pooler"):
        make_distiller(kbf.Backbone("bert", **SMALL), teacher)
