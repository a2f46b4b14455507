"""What JAX has compiled for one model is read for the next of the same shapes."""

import keras
import numpy as np
import pytest

from keras_bert_flow.backends.steps import keeping_compilations


def fit_model():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, kernel_initializer="ones")])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    x = np.arange(12, dtype="float32").reshape(4, 3)
    model.fit(x, x[:, :2], epochs=2, shuffle=False, verbose=0)
    return model.get_weights()


def test_the_second_model_compiles_nothing(tmp_path):
    wanted = fit_model()
    with keeping_compilations(str(tmp_path)):
        first = fit_model()
        kept = sorted(path.name for path in tmp_path.iterdir() if path.name.endswith("-cache"))
        second = fit_model()
    again = sorted(path.name for path in tmp_path.iterdir() if path.name.endswith("-cache"))
    assert bool(kept) == (keras.backend.backend() == "jax")
    assert again == kept
    for weights in (first, second):
        for ours, theirs in zip(weights, wanted, strict=True):
            np.testing.assert_array_equal(ours, theirs)
    fit_model()
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.endswith("-cache")) == kept


def test_a_cache_of_the_users_is_left_alone(tmp_path):
    if keras.backend.backend() != "jax":
        pytest.skip("Only JAX has one.")
    import jax

    (own := tmp_path / "own").mkdir()
    jax.config.update("jax_compilation_cache_dir", str(own))
    try:
        with keeping_compilations(str(tmp_path / "ours")):
            assert jax.config.jax_compilation_cache_dir == str(own)
    finally:
        jax.config.update("jax_compilation_cache_dir", None)
