"""Every optimizer against a plain reference; which weights it decays, scales and slows down; saving."""

import copy
import re

import keras
import numpy as np
import pytest

from keras_bert_flow.training.optimizers.adam import OPTIMIZERS, adamw, find_rate_factors
from keras_bert_flow.training.optimizers.schedules import WarmupDecay
from keras_bert_flow.training.pretraining.pretrainers import make_pretrainer
from tests.oracles.tiny_records import make_tiny_config
from tests.training.optimizer_cases import DECAY, DECAYED, MUON, SHAPES, make_optimizer, make_variables, values_of

PEAK, CLIP, WARMUP, TOTAL = 0.05, 1.0, 5, 20
LAYERS_ABOVE = {"token_embedding": 3, "encoder_block_0": 2, "encoder_block_1": 1, "classifier": 0}


def run_reference(kind, weights, gradients, layer_decay=1.0, epsilon=1e-6, token_embedding_factor=1.0):
    """Run an optimizer in float64.

    adamw: Loshchilov and Hutter 2019, algorithm 2, the decay scaled by the rate; epsilon is the "epsilon hat" of Kingma
    and Ba 2015, section 2, added before the second moment is corrected. bert_adam: the same, uncorrected. lamb: You et
    al. 2020, algorithm 2. muon: Jordan et al. 2024, for matrices of encoder blocks. stable_adamw: Wortsman et al. 2023,
    algorithm 2. Clipping: Pascanu et al. 2013, algorithm 1.
    """
    weights = {name: value.astype("float64") for name, value in weights.items()}
    first = {name: np.zeros_like(value) for name, value in weights.items()}
    second = {name: np.zeros_like(value) for name, value in weights.items()}
    for step, given in enumerate(gradients):
        rate = PEAK * min(step / WARMUP, (TOTAL - step) / (TOTAL - WARMUP))
        norm = np.sqrt(sum((gradient**2).sum() for gradient in given.values()))
        for name, gradient in given.items():
            gradient = gradient * min(1.0, CLIP / norm)
            old = first[name]
            first[name] = 0.9 * old + 0.1 * gradient
            beta = 0.98 if kind == "stable_adamw" else 0.999
            second[name] = beta * second[name] + (1 - beta) * gradient**2
            corrected = first[name] / (1 - 0.9 ** (step + 1))
            missing = 1 - beta ** (step + 1)
            is_matrix = name.split("/")[1] in ("kernel", "embeddings")
            if kind in ("adamw", "muon"):
                update = corrected / ((np.sqrt(second[name]) + epsilon) / np.sqrt(missing))
            elif kind == "bert_adam":
                update = first[name] / (np.sqrt(second[name]) + epsilon)
            else:
                update = corrected / (np.sqrt(second[name] / missing) + epsilon)
            if is_matrix:
                update = update + DECAY * weights[name]
            if kind == "stable_adamw":
                excess = np.mean(gradient**2 / np.maximum(second[name] / missing, epsilon**2))
                update = update / max(1.0, np.sqrt(excess))
            if kind == "muon" and name.startswith("encoder") and is_matrix:
                first[name] = 0.95 * old + gradient
                update = MUON["matrix_rate_factor"] * (
                    orthogonalise_plainly(gradient + 0.95 * first[name]) + DECAY * weights[name]
                )
            if is_matrix and kind == "lamb":
                update = update * np.linalg.norm(weights[name]) / np.linalg.norm(update)
            rate_here = rate * layer_decay ** LAYERS_ABOVE[name.split("/")[0]]
            if name.startswith("token_embedding"):
                rate_here *= token_embedding_factor
            weights[name] = weights[name] - rate_here * update
    return weights


def orthogonalise_plainly(matrix):
    values = matrix / (np.linalg.norm(matrix) + 1e-7)
    for _ in range(5):
        gram = values @ values.T
        values = 3.4445 * values + (-4.7750 * gram + 2.0315 * gram @ gram) @ values
    inputs, outputs = matrix.shape
    return values * max(1.0, outputs / inputs) ** 0.5


def schedule():
    return WarmupDecay(PEAK, WARMUP, TOTAL)


@pytest.mark.first_form_compiled
@pytest.mark.parametrize(
    ("layer_decay", "options"), [(1.0, {}), (0.5, {}), (1.0, {"epsilon": 0.1}), (1.0, {"token_embedding_factor": 0.3})]
)
@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.slow_on_tensorflow
def test_optimizer_equals_plain_reference(kind, layer_decay, options):
    rng = np.random.default_rng(0)
    first = {name: rng.normal(size=shape).astype("float32") for name, shape in SHAPES.items()}
    # Norms from about 0.1 to 60: clipped on some steps, not on others.
    sizes = np.geomspace(0.02, 10, TOTAL)[rng.permutation(TOTAL)]
    gradients = [{name: size * rng.normal(size=shape) for name, shape in SHAPES.items()} for size in sizes]
    norms = [np.sqrt(sum((gradient**2).sum() for gradient in given.values())) for given in gradients]
    assert min(norms) < CLIP / 2 and max(norms) > CLIP * 20
    variables = make_variables(first)
    factor = options.get("token_embedding_factor", 1.0)
    factors = {
        name: layer_decay ** LAYERS_ABOVE[name.split("/")[0]] * (factor if name.startswith("token") else 1.0)
        for name in SHAPES
    }
    factors = {name: value for name, value in factors.items() if value != 1}
    others = {name: value for name, value in options.items() if name == "epsilon"}
    optimizer = make_optimizer(kind, schedule(), DECAY, CLIP, factors, **others)
    optimizer.build(variables)
    for given in gradients:
        optimizer.apply([keras.ops.convert_to_tensor(given[name], "float32") for name in SHAPES])
    expected = run_reference(kind, first, gradients, layer_decay, **options)
    for name, found in zip(SHAPES, values_of(variables), strict=True):
        # Weights up to 3 through 20 steps: 40 roundings of 1e-7; the correction of Keras' own AdamW, near 1e-3 at
        # first, is known to 6e-5 of itself in float32, half of which goes into steps of at most 0.05.
        np.testing.assert_allclose(found, expected[name], atol=5e-6, err_msg=name)
    assert int(optimizer.iterations) == TOTAL


def test_public_adamw_is_that_of_the_configuration():
    for options in ({}, {"epsilon": 1e-8}):
        public = adamw(PEAK, TOTAL, WARMUP, DECAY, CLIP, **options)
        assert public.get_config() == make_optimizer("adamw", schedule(), DECAY, CLIP).get_config() | options


@pytest.mark.first_form_compiled
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_rows_gathered_twice_count_as_one_gradient(kind):
    """TensorFlow gives the gradient of a gather row by row, some rows several times."""
    weights = np.array([[1, 2], [3, 4], [5, 6], [7, 8]], "float32")
    slopes = np.array([[[3, 1], [3, 1], [0, 4]]], "float32")  # the first two meet in row 1
    model = keras.Sequential([keras.layers.Embedding(4, 2, name="token_embedding")])
    model.build((1, 3))
    model.layers[0].embeddings.assign(weights)
    optimizer = make_optimizer(kind, 0.1, DECAY, CLIP)
    model.compile(optimizer=optimizer, loss=lambda slopes, rows: keras.ops.sum(slopes * rows))
    model.train_on_batch(np.array([[1, 1, 2]], "int32"), slopes)
    gradient = np.array([[0, 0], [6, 2], [0, 4], [0, 0]]) / np.sqrt(56)  # its norm is clipped to 1
    momentum, velocity = values_of(optimizer.variables[-2:])
    np.testing.assert_allclose(momentum, 0.1 * gradient, atol=1e-7)
    share = 0.02 if kind == "stable_adamw" else 0.001
    np.testing.assert_allclose(velocity, share * gradient**2, atol=1e-9)


def make_model(optimizer):
    model = make_pretrainer(make_tiny_config().model, 50)
    model.compile(optimizer=optimizer)
    model.optimizer.build(model.trainable_variables)
    return model


def step_from(model, values, gradient):
    """Return how far one step with the same gradient everywhere moves each weight."""
    for variable in model.optimizer.variables:
        if "learning_rate" not in variable.path:
            variable.assign(keras.ops.zeros_like(variable.value))
    for variable, value in zip(model.trainable_variables, values, strict=True):
        variable.assign(value)
    model.optimizer.apply([keras.ops.full(variable.shape, gradient) for variable in model.trainable_variables])
    return [new - old for new, old in zip(values_of(model.trainable_variables), values, strict=True)]


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.any_backend
def test_these_weights_only_are_decayed(kind):
    model = make_model(make_optimizer(kind, 0.1))
    values = [np.ones(variable.shape, "float32") for variable in model.trainable_variables]
    moves = step_from(model, values, 0.0)
    assert sorted(v.path for v, move in zip(model.trainable_variables, moves, strict=True) if move.any()) == DECAYED


@pytest.mark.slow_compiled
def test_these_weights_only_are_scaled_by_their_norm():
    model = make_model(make_optimizer("lamb", 0.1, weight_decay=0.0))
    ones = [np.ones(variable.shape, "float32") for variable in model.trainable_variables]
    small, large = step_from(model, ones, 0.01), step_from(model, [2 * value for value in ones], 0.01)
    ratios = {
        variable.path: round(float(there.mean() / here.mean()), 3)
        for variable, here, there in zip(model.trainable_variables, small, large, strict=True)
    }
    assert sorted(path for path, ratio in ratios.items() if ratio == 2.0) == DECAYED
    assert {ratio for path, ratio in ratios.items() if path not in DECAYED} == {1.0}


@pytest.mark.slow_compiled
def test_lamb_moves_weights_that_are_0():
    model = make_model(make_optimizer("lamb", 0.1, clip_norm=None))
    moves = step_from(model, [np.zeros(variable.shape, "float32") for variable in model.trainable_variables], 0.01)
    for move in moves:
        np.testing.assert_allclose(move, -0.1, rtol=2e-4)  # epsilon beside a gradient of 0.01


def test_rates_by_depth():
    model = make_pretrainer(make_tiny_config({"num_layers": 3}).model, 50)
    paths = [variable.path for variable in model.trainable_variables]
    found = find_rate_factors(model.backbone, 0.5, token_embedding_factor=0.1)
    powers = {"token_embedding": 4, "embeddings": 4, "encoder_block_0": 3, "encoder_block_1": 2, "encoder_block_2": 1}
    expected = {path: 0.5 ** powers[path.split("/")[0]] for path in paths if path.split("/")[0] in powers}
    assert found == expected | {"token_embedding/embeddings": 0.1 * 0.5**4}
    assert set(powers) | {"pooler", "mlm_transform", "mlm", "nsp"} == {path.split("/")[0] for path in paths}
    assert find_rate_factors(model.backbone) == {}


def test_impossible_rates_are_refused():
    model = make_pretrainer(make_tiny_config().model, 50)
    with pytest.raises(ValueError, match=r"`layer_decay` must be above 0 and at most 1. Received: layer_decay=1\.5"):
        find_rate_factors(model.backbone, 1.5)


@pytest.mark.parametrize("kind", ["bert_adam", "lamb", "muon"])
def test_saved_optimizer_is_the_same(kind):
    optimizer = make_optimizer(kind, schedule(), DECAY, CLIP, {"kernel": 0.5}, 2)
    optimizer.excluded_names = ("kernel$",)
    saved = keras.saving.serialize_keras_object(optimizer)
    twin = keras.saving.deserialize_keras_object(copy.deepcopy(saved))  # what it reads, it changes
    assert keras.saving.serialize_keras_object(twin) == saved
    assert twin.decay == DECAY and twin.weight_decay is None
    assert twin.excluded_names == ("kernel$",) and twin.rate_factors == {"kernel": 0.5}


@pytest.mark.any_backend
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_variables_are_named_alike_in_every_process(kind):
    paths = [[v.path for v in make_model(make_optimizer(kind, schedule())).optimizer.variables] for _ in range(2)]
    assert paths[0] == paths[1]
    assert all(re.match(rf"{kind}/", path) for path in paths[0])
    assert len(set(paths[0])) == len(paths[0])


def test_unknown_optimizer_is_refused():
    with pytest.raises(ValueError, match="must be one of adamw, bert_adam, lamb, muon, stable_adamw. Received: 'sgd'"):
        make_optimizer("sgd", 0.1)
