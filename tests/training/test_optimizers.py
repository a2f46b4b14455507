"""AdamW with warm-up, against a plain reference; and which weights it decays."""

import keras
import numpy as np

from keras_bert_flow.training.optimizers import adamw
from keras_bert_flow.training.pretrain import make_pretrainer
from tests.oracles.tiny_records import make_tiny_config

PEAK, DECAY, CLIP, WARMUP, TOTAL = 0.05, 0.1, 1.0, 5, 20


def run_reference(weights, gradients):
    """AdamW in float64: Loshchilov and Hutter 2019, algorithm 2, the decay scaled by the rate.

    Epsilon is the "epsilon hat" of Kingma and Ba 2015, section 2: added before the second moment is corrected.
    """
    weights = {name: value.astype("float64") for name, value in weights.items()}
    first = {name: np.zeros_like(value) for name, value in weights.items()}
    second = {name: np.zeros_like(value) for name, value in weights.items()}
    for step, given in enumerate(gradients):
        rate = PEAK * min(step / WARMUP, (TOTAL - step) / (TOTAL - WARMUP))
        norm = np.sqrt(sum((gradient**2).sum() for gradient in given.values()))
        for name, gradient in given.items():
            gradient = gradient * min(1.0, CLIP / norm)
            first[name] = 0.9 * first[name] + 0.1 * gradient
            second[name] = 0.999 * second[name] + 0.001 * gradient**2
            corrected = first[name] / (1 - 0.9 ** (step + 1))
            scale = (np.sqrt(second[name]) + 1e-6) / np.sqrt(1 - 0.999 ** (step + 1))
            decay = DECAY * weights[name] if name == "kernel" else 0.0
            weights[name] = weights[name] - rate * (corrected / scale + decay)
    return weights


def test_adamw_equals_plain_reference():
    rng = np.random.default_rng(0)
    shapes = {"kernel": (4, 3), "bias": (3,), "gamma": (3,), "beta": (3,)}
    first = {name: rng.normal(size=shape).astype("float32") for name, shape in shapes.items()}
    # Norms from about 0.1 to 40: clipped on some steps, not on others.
    sizes = np.geomspace(0.02, 10, TOTAL)[rng.permutation(TOTAL)]
    gradients = [{name: size * rng.normal(size=shape) for name, shape in shapes.items()} for size in sizes]
    variables = {name: keras.Variable(value, name=name) for name, value in first.items()}
    optimizer = adamw(PEAK, TOTAL, WARMUP, DECAY, CLIP)
    optimizer.build(list(variables.values()))
    for given in gradients:
        optimizer.apply([keras.ops.convert_to_tensor(given[name], "float32") for name in variables])
    expected = run_reference(first, gradients)
    for name, variable in variables.items():
        # Weights up to 2 through 20 steps: 40 roundings of 1e-7; the correction of the second moment, near 1e-3 at
        # first, is known to 6e-5 of itself in float32, half of which goes into steps of at most 0.05.
        np.testing.assert_allclose(keras.ops.convert_to_numpy(variable.value), expected[name], atol=5e-6)


def test_rows_gathered_twice_count_as_one_gradient():
    """TensorFlow gives the gradient of a gather row by row, some rows several times."""
    weights = np.array([[1, 2], [3, 4], [5, 6], [7, 8]], "float32")
    slopes = np.array([[[3, 1], [3, 1], [0, 4]]], "float32")  # the first two meet in row 1
    model = keras.Sequential([keras.layers.Embedding(4, 2, name="token_embedding")])
    model.build((1, 3))
    model.layers[0].embeddings.assign(weights)
    optimizer = adamw(0.1, TOTAL, 0, DECAY, CLIP)
    model.compile(optimizer=optimizer, loss=lambda slopes, rows: keras.ops.sum(slopes * rows))
    model.train_on_batch(np.array([[1, 1, 2]], "int32"), slopes)
    gradient = np.array([[0, 0], [6, 2], [0, 4], [0, 0]]) / np.sqrt(56)  # its norm is clipped to 1
    momentum, velocity = (keras.ops.convert_to_numpy(variable.value) for variable in optimizer.variables[-2:])
    np.testing.assert_allclose(momentum, 0.1 * gradient, atol=1e-7)
    np.testing.assert_allclose(velocity, 0.001 * gradient**2, atol=1e-9)


def find_decayed(model):
    """Return the paths of the weights that a step without any gradient moves."""
    model.optimizer.build(model.trainable_variables)
    before = [np.array(keras.ops.convert_to_numpy(variable.value)) for variable in model.trainable_variables]
    for variable, value in zip(model.trainable_variables, before, strict=True):
        variable.assign(value + 1.0)  # none is 0, which decay would leave where it is
    model.optimizer.apply([keras.ops.zeros_like(variable.value) for variable in model.trainable_variables])
    after = [keras.ops.convert_to_numpy(variable.value) for variable in model.trainable_variables]
    triples = zip(model.trainable_variables, before, after, strict=True)
    return sorted(variable.path for variable, old, new in triples if not np.array_equal(old + 1.0, new))


def test_adamw_decays_these_weights_only():
    model = make_pretrainer(make_tiny_config().model, 50)
    model.compile(optimizer=adamw(0.1, 10))
    assert find_decayed(model) == [
        "embeddings/position_embedding",
        "embeddings/segment_embedding",
        "encoder_block_0/attention/output/kernel",
        "encoder_block_0/attention/query_key_value/kernel",
        "encoder_block_0/intermediate/kernel",
        "encoder_block_0/output/kernel",
        "mlm_transform/dense/kernel",
        "nsp/kernel",
        "pooler/dense/kernel",
        "token_embedding/embeddings",
    ]
