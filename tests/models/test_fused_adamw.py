"""The fused AdamW takes the steps of Keras' own, whatever the layout of the gradients."""

import keras
import numpy as np
import pytest

from keras_bert_flow.models.defaults import UNDECAYED_NAMES, make_adamw

SHAPES = {"dense/kernel": (5, 3), "dense/bias": (3,), "embedding/embeddings": (7, 2)}


def make_variables():
    rng = np.random.default_rng(1)
    return [keras.Variable(rng.normal(size=shape).astype("float32")) for name, shape in SHAPES.items()]


def make_gradient(value):
    """Return it as a tensor; of a matrix as a view of its transpose, as the gradient of a product can be."""
    tensor = keras.ops.convert_to_tensor(value.T.copy())
    return keras.ops.transpose(tensor) if value.ndim == 2 else tensor


@pytest.mark.parametrize("batches", [1, pytest.param(3, marks=pytest.mark.any_backend)])
@pytest.mark.parametrize("clip_norm", [None, 0.5, pytest.param(100.0, marks=pytest.mark.any_backend)])
def test_steps_are_those_of_keras(clip_norm, batches):
    options = {"gradient_accumulation_steps": batches} if batches > 1 else {}
    keras_own = keras.optimizers.AdamW(0.01, weight_decay=0.1, epsilon=1e-6, global_clipnorm=clip_norm, **options)
    keras_own.exclude_from_weight_decay(var_names=list(UNDECAYED_NAMES))
    ends = []
    for optimizer in (keras_own, make_adamw(0.01, weight_decay=0.1, clip_norm=clip_norm, **options)):
        rng, variables = np.random.default_rng(2), make_variables()
        for name, variable in zip(SHAPES, variables, strict=True):
            variable._name = name  # one that the patterns of what is not decayed are made for
        optimizer.build(variables)
        for batch in range(5 * batches):
            gradients = [make_gradient(rng.normal(size=shape).astype("float32")) for shape in SHAPES.values()]
            optimizer.apply(gradients, variables)
            assert int(optimizer.iterations) == (batch + 1) // batches
        ends.append([keras.ops.convert_to_numpy(variable.value) for variable in variables])
    for expected, got, name in zip(*ends, SHAPES, strict=True):
        # Weights of about 1 that moved by 0.05: float32 roundings of 6e-8 a step.
        np.testing.assert_allclose(got, expected, atol=1e-6, err_msg=name)


def test_variables_without_a_gradient_stay():
    variables = make_variables()
    optimizer = make_adamw(0.01)
    optimizer.build(variables)
    before = [keras.ops.convert_to_numpy(variable.value).copy() for variable in variables]
    with pytest.warns(UserWarning) if keras.backend.backend() != "torch" else pytest.MonkeyPatch.context():
        optimizer.apply([make_gradient(np.ones((5, 3), "float32")), None, None], variables)
    after = [keras.ops.convert_to_numpy(variable.value) for variable in variables]
    assert (before[0] != after[0]).all()
    for index in (1, 2):
        np.testing.assert_array_equal(before[index], after[index])


def test_biases_alone_are_trained_in_the_unfused_form():
    """As for an encoder whose biases alone are trained (Ben Zaken et al. 2022): PyTorch refuses an empty list."""
    bias = keras.Variable(np.array([1.0, 2.0, -3.0], "float32"), name="bias")
    optimizer = make_adamw(0.01, weight_decay=0.1, use_ema=True)
    optimizer.build([bias])
    optimizer.apply([make_gradient(np.ones(3, "float32"))], [bias])
    # The first step of Adam is the rate, but for an epsilon of 1e-6, and there is no decay.
    np.testing.assert_allclose(keras.ops.convert_to_numpy(bias.value), [0.99, 1.99, -3.01], atol=1e-6)
