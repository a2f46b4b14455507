"""The losses of feature maps and attention maps, MobileBERT's, against NumPy, and what they move."""

import keras
import numpy as np
import pytest
from scipy.special import log_softmax

import keras_bert_flow as kbf
from keras_bert_flow.models.pretraining.distiller import AttentionMapLosses, FeatureMapLosses
from keras_bert_flow.text.objectives.mlm import Distillation
from tests.models.test_distilled_layers import DEEP, HEADS, LAYERS_ALONE, NARROW, SMALL, make_encoder
from tests.oracles import numpy_bert
from tests.oracles.small_bert import LENGTHS, make_inputs
from tests.oracles.task_models import call

MAPS = {"feature_map_weight": 1.0, "attention_map_weight": 1.0}
MAPS_ALONE = dict.fromkeys(LAYERS_ALONE, 0.0) | MAPS
RNG = np.random.default_rng(4)
TEACHER = {  # an inverted bottleneck
    "family": "mobilebert",
    "bottleneck_dim": 36,
    "num_feed_forwards": 1,
    "normalization": "layer_norm",
    "has_query_bottleneck": False,
}
STUDENT = {"family": "mobilebert", "bottleneck_dim": 9, "num_feed_forwards": 2}


def make_distiller(student=None, teacher=None, **weights):
    return kbf.Distiller(student or make_encoder(), teacher or make_encoder(5), **MAPS_ALONE | weights)


def make_batch():
    """Return the batch of inputs, labels and weights that the objective makes of records."""
    x = make_inputs()
    features = {"input_ids": x["token_ids"], "segment_ids": x["segment_ids"], "input_mask": x["padding_mask"]}
    masks = np.zeros((len(LENGTHS), 3))
    features |= {f"masked_lm_{name}": masks for name in ("positions", "ids", "weights")}
    weights = {"attention_score_weight": 0.0, "layer_state_weight": 0.0} | MAPS
    return Distillation(False, False, **weights, has_head=False, num_layers=2).make_batch(features)


def diverge(ours, theirs, mask):
    """Return the divergence of each row from scores, (heads, query, key), key by key of each real query."""
    total, count = 0.0, 0
    real = np.flatnonzero(mask)
    for query in real:
        for head in range(len(ours)):
            guesses, shares = (log_softmax(scores[head, query, real].astype("float64")) for scores in (ours, theirs))
            total += (np.exp(shares) * (shares - guesses)).sum()
            count += 1
    return total / count if count else 0.0


def find_losses(model, x):
    """Return both losses of each row and layer, by NumPy."""
    found = []
    for encoder in (model.student, model.teacher):
        weights = numpy_bert.weights_of(encoder)
        states, _ = numpy_bert.forward(weights, x, encoder.num_layers, HEADS)
        found.append((states[1:], numpy_bert.attention_scores(weights, states, x["padding_mask"], HEADS)))
    (states, scores), (targets, known) = found
    mask = x["padding_mask"].astype(bool)
    features, attention = np.zeros((2, len(mask), 2))
    for layer in range(2):
        for row, is_real in enumerate(mask):
            error = (states[layer] - targets[layer])[row, is_real] ** 2
            features[row, layer] = error.mean() if is_real.any() else 0.0
            attention[row, layer] = diverge(scores[layer][row], known[layer][row], is_real)
    return features, attention


@pytest.mark.slow_compiled
def test_losses_are_those_of_numpy():
    model, (x, _, _) = make_distiller(), make_batch()
    outputs = model.predict(x, verbose=0) if keras.backend.backend() == "jax" else call(model, x)
    features, attention = find_losses(model, x)
    for name, expected in (("feature_map", features), ("attention_map", attention)):
        assert outputs[name].shape == (4, 2, 1)
        real = np.array(LENGTHS) > 0
        # float32 roundings of 6e-8 through two layers with random weights; a divergence is a difference of logarithms
        np.testing.assert_allclose(outputs[name][real, :, 0], expected[real], rtol=1e-4, atol=1e-6, err_msg=name)
        assert np.isfinite(outputs[name]).all()


def test_losses_of_fixed_tensors_leave_out_padding():
    """A padded query does not count, whatever its scores; a padded key has the probability 0."""
    mask = np.array([[1, 1, 0]], "int32")
    ours = np.array([[[[0.0, 0.0, -1e9], [0.0, np.log(3.0), -1e9], [5.0, 1.0, -1e9]]]], "float32")
    theirs = np.array([[[[np.log(3.0), 0.0, -1e9], [0.0, np.log(3.0), -1e9], [1.0, 9.0, -1e9]]]], "float32")
    found = keras.ops.convert_to_numpy(AttentionMapLosses()([ours, theirs], [theirs, theirs], mask))
    expected = (0.75 * np.log(0.75 / 0.5) + 0.25 * np.log(0.25 / 0.5)) / 2  # of the first of two queries
    np.testing.assert_allclose(found, [[[expected], [0.0]]], rtol=1e-6)
    states = np.array([[[1.0, 2.0], [0.0, 4.0], [7.0, 7.0]]], "float32")
    targets = np.array([[[1.0, 0.0], [3.0, 4.0], [0.0, 0.0]]], "float32")
    found = keras.ops.convert_to_numpy(FeatureMapLosses()([states, targets], [targets, targets], mask))
    np.testing.assert_allclose(found, [[[(4 / 2 + 9 / 2) / 2], [0.0]]], rtol=1e-6)


@pytest.mark.any_backend
def test_training_and_evaluation_average_over_real_tokens():
    model, (x, y, weights) = make_distiller(attention_map_weight=0.5), make_batch()
    assert {name: value.shape for name, value in y.items()} == dict.fromkeys(("feature_map", "attention_map"), (4, 2))
    np.testing.assert_array_equal(weights["feature_map"], np.array([LENGTHS, LENGTHS]).T)
    model.compile(optimizer=keras.optimizers.SGD(0.0))
    features, attention = (
        (values * np.array(LENGTHS)[:, None]).sum() / (2 * sum(LENGTHS)) for values in find_losses(model, x)
    )
    for measure in (model.evaluate, model.train_on_batch):
        options = {"verbose": 0} if measure == model.evaluate else {}
        logs = measure(x, y, sample_weight=weights, return_dict=True, **options)
        assert logs["feature_map_loss"] == pytest.approx(features, rel=1e-4)
        assert logs["attention_map_loss"] == pytest.approx(attention, rel=1e-4)
        assert logs["loss"] == pytest.approx(features + 0.5 * attention, rel=1e-4)


@pytest.mark.any_backend
def test_narrow_student_learns_from_an_inverted_bottleneck():
    student, teacher = make_encoder(**STUDENT), make_encoder(5, **TEACHER)
    model, (x, y, weights) = make_distiller(student, teacher), make_batch()
    model.compile(optimizer=keras.optimizers.SGD(0.01))
    known, before = teacher.get_weights(), student.get_weights()
    losses = [model.train_on_batch(x, y, sample_weight=weights, return_dict=True)["loss"] for _ in range(3)]
    assert losses[2] < losses[0]
    assert all(map(np.array_equal, known, teacher.get_weights()))
    moved = [np.abs(old - new).max() > 0 for old, new in zip(before, student.get_weights(), strict=True)]
    paths = [weight.path for weight, is_moved in zip(student.weights, moved, strict=True) if not is_moved]
    assert [path for path in paths if not path.endswith("/key/bias")] == []


@pytest.mark.any_backend
def test_packed_texts_have_the_losses_that_they_have_alone():
    model, (x, _, _) = make_distiller(), make_batch()
    alone = {name: value[:2, :4] for name, value in x.items()}  # two texts of four tokens
    packed = {name: value.reshape(1, 8) for name, value in alone.items()}
    packed["padding_mask"] = packed["padding_mask"] * np.repeat([[1, 2]], 4, axis=1).astype("int32")
    expected, found = call(model, alone), call(model, packed)
    for name in ("feature_map", "attention_map"):
        np.testing.assert_allclose(found[name][0], expected[name].mean(axis=0), rtol=1e-4)


@pytest.mark.any_backend
def test_maps_go_together_with_predictions_and_scores():
    student, teacher = (kbf.MaskedLM(make_encoder(seed)) for seed in (1, 5))
    x = make_inputs(masks_per_sequence=3)
    others = {"attention_score_weight": 1.0, "layer_state_weight": 1.0}
    both, plain = kbf.Distiller(student, teacher, **others, **MAPS), kbf.Distiller(student, teacher)
    found, expected = both.predict(x, verbose=0), plain.predict(x, verbose=0)
    assert {*found} == {*expected, "attention", "layers", "feature_map", "attention_map"}
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)
    twin = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(both))
    twin.set_weights(both.get_weights())
    for name, value in call(both, x).items():
        np.testing.assert_array_equal(value, call(twin, x)[name])


@pytest.mark.any_backend
def test_maps_of_other_shapes_are_refused():
    teacher = make_encoder(5)
    for student, weights, message in (
        (NARROW, {}, "maps of one shape. Received: hidden_dim=12, the teacher's 24. Give the student these"),
        ({"num_heads": 4}, {}, "Received: num_heads=4, the teacher's 3"),
        ({"num_layers": 1}, {}, "as many layers as its teacher.* Received: num_layers=1, the teacher's 2"),
        (DEEP | NARROW, {}, "Received: num_layers=4, the teacher's 2, hidden_dim=12, the teacher's 24"),
    ):
        with pytest.raises(ValueError, match=message):
            make_distiller(make_encoder(**student), teacher, **weights)
    make_distiller(make_encoder(**NARROW), teacher, feature_map_weight=0.0)
    make_distiller(make_encoder(num_heads=4), teacher, attention_map_weight=0.0)
    assert SMALL["num_layers"] == 2
