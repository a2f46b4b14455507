"""Fused attention is the dense one, forward and in its gradient; dropout takes keys at its rate."""

from functools import partial
from types import SimpleNamespace

import keras
import numpy as np
import pytest

from keras_bert_flow.backends import kernels
from keras_bert_flow.backends.fused import dropped_steps
from keras_bert_flow.layers.attention import MultiHeadSelfAttention
from keras_bert_flow.layers.masks import attention_bias
from keras_bert_flow.layers.patterns import FULL, Blocks, Causal, Permutation, Rotary, Window
from keras_bert_flow.layers.shape import EncoderShape

BACKEND = keras.backend.backend()
pytestmark = pytest.mark.skipif(BACKEND == "tensorflow", reason="TensorFlow has the dense kernel alone")

HEADS, WIDTH, LENGTH = 3, 24, 10
SHAPE = EncoderShape(
    vocabulary_size=9, num_layers=1, num_heads=HEADS, hidden_dim=WIDTH, intermediate_dim=8, attention_dropout_rate=0.0
)
MASK = np.array([[1] * LENGTH, [1] * 4 + [2] * 5 + [0], [0] * LENGTH, [1] * 3 + [0] * 7], "int32")
RNG = np.random.default_rng(4)
FUSED, WEIGHTS = (RNG.normal(size=(4, LENGTH, units)).astype("float32") for units in (3 * WIDTH, WIDTH))


def read(tensor):
    return keras.ops.convert_to_numpy(keras.ops.cast(tensor, "float32"))


def kernel_here():
    """Return the kernel of the GPU; on JAX the same function computed by XLA."""
    return kernels._attend_by_torch if BACKEND == "torch" else partial(kernels._attend_by_cudnn, implementation="xla")


def differentiate(function, fused, dtype, weights=WEIGHTS):
    """Return the values of a function of `fused` and the gradient of their weighted sum."""
    if BACKEND == "torch":
        import torch

        given = torch.tensor(fused).to(getattr(torch, dtype)).requires_grad_()
        values = function(given)
        (values.float() * torch.tensor(weights)).sum().backward()
        return read(values.detach()), read(given.grad)
    import jax

    given = jax.numpy.asarray(fused, dtype)
    values, gradient = jax.jit(
        lambda given: (function(given), jax.grad(lambda x: (function(x).astype("float32") * weights).sum())(given))
    )(given)
    return read(values), read(gradient)


@pytest.mark.first_form_compiled
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 3e-2), ("float16", 5e-3)])
@pytest.mark.parametrize(
    "pattern", [FULL, Window(2), Window(1, num_global=1), Blocks(3), Causal(), Permutation()], ids=repr
)
def test_fused_attention_is_the_dense_one(pattern, dtype, tolerance):
    if (BACKEND, dtype) == ("jax", "float16"):
        pytest.skip("XLA on a CPU does not add up float16 products")
    layer = MultiHeadSelfAttention(SHAPE, pattern=pattern, dtype=dtype, name="attention")
    bias = attention_bias(keras.ops.convert_to_tensor(MASK), pattern)
    dense = partial(layer._attend_densely, bias=bias, seed=None, relative=None, dropped=0)
    fused = partial(kernels._attend_fused, bias=bias, seed=None, num_heads=HEADS, dropped=0, kernel=kernel_here())
    expected, expected_gradient = differentiate(dense, FUSED, dtype)
    found, gradient = differentiate(fused, FUSED, dtype)
    # A row of nothing but padding has no defined output: only that it is finite.
    assert np.isfinite(found).all() and np.isfinite(gradient).all()
    real = MASK > 0
    scale = np.abs(expected).max()
    np.testing.assert_allclose(found[real], expected[real], atol=tolerance * scale)
    if dtype == "float32":  # gradients of padding queries, which attend to whatever is there, reach real keys
        rows = MASK.all(axis=1)
        np.testing.assert_allclose(gradient[rows], expected_gradient[rows], atol=1e-5 * np.abs(expected_gradient).max())


@pytest.mark.slow_compiled
def test_rotated_queries_and_keys_take_the_fused_kernel(monkeypatch):
    layer = MultiHeadSelfAttention(SHAPE, Window(2), Rotary(100.0), name="attention")
    fused, mask = (keras.ops.convert_to_tensor(values) for values in (FUSED, MASK))
    expected = read(layer._attend(fused, mask))

    def attend(fused, bias, padding_mask, pattern, num_heads, dense, dropout):
        return kernels._attend_fused(fused, bias, dropout, num_heads, 0, kernel_here())

    monkeypatch.setattr("keras_bert_flow.layers.attention.attend", attend)
    found = read(layer._attend(fused, mask))
    assert not np.array_equal(found, expected)  # by another kernel
    np.testing.assert_allclose(found[MASK > 0], expected[MASK > 0], atol=1e-5 * np.abs(expected).max())


def test_dropout_takes_keys_from_all_queries_at_its_rate():
    keys, rate = 4000, 0.25
    fused = np.zeros((1, keys, 3 * HEADS), "float32").reshape(1, keys, HEADS, 3)
    fused[..., 2] = 1.0  # each key has the value 1, and no query prefers one
    seed = keras.ops.convert_to_tensor(np.array([3, 5], "uint32"))
    bias = keras.ops.zeros((1, 1, 1, keys))
    seen = []

    def keep(query, key, value, bias):
        seen.append(read(value))
        return value

    given = keras.ops.convert_to_tensor(fused.reshape(1, keys, 3 * HEADS))
    kernels._attend_fused(given, bias, seed, HEADS, dropped_steps(rate), keep)
    values = seen[0][0, :, :, 0]  # (key, head)
    assert set(np.unique(values.round(4))) == {0.0, np.float32(round(1 / (1 - rate), 4))}
    # Five standard errors of a share of 12,000 draws
    assert abs((values == 0).mean() - rate) < 5 * np.sqrt(rate * (1 - rate) / values.size)
    assert 0.04 < ((values[:, 0] == 0) & (values[:, 1] == 0)).mean() < 0.09  # heads drop keys of their own: 1/16


@pytest.mark.skipif(BACKEND != "jax", reason="programs of JAX are for a device that may be another")
def test_program_for_this_device_has_the_dense_kernel(monkeypatch):
    import jax

    monkeypatch.setattr(kernels, "has_cudnn", lambda: True)
    monkeypatch.setattr(kernels, "_attend_by_cudnn", partial(kernels._attend_by_cudnn, implementation="xla"))
    layer = MultiHeadSelfAttention(SHAPE, dtype="bfloat16", name="attention")
    bias = attention_bias(MASK)
    dense = partial(layer._attend_densely, relative=None, dropped=0)
    given = jax.numpy.asarray(FUSED, "bfloat16")
    found = jax.jit(lambda fused: kernels.attend(fused, bias, MASK, FULL, HEADS, dense, None))(given)
    np.testing.assert_array_equal(read(found), read(jax.jit(lambda fused: dense(fused, bias, None))(given)))


@pytest.mark.skipif(BACKEND != "jax" or not kernels.has_cudnn(), reason="needs cuDNN")
def test_cudnn_is_the_dense_kernel():
    import jax

    if jax.default_backend() != "gpu":
        pytest.skip("needs a GPU")
    layer = MultiHeadSelfAttention(SHAPE, dtype="bfloat16", name="attention")
    bias = attention_bias(keras.ops.convert_to_tensor(MASK))
    dense = partial(layer._attend_densely, relative=None, dropped=0)
    given = {"bias": bias, "padding_mask": MASK, "pattern": FULL, "num_heads": HEADS}
    compute = partial(kernels.attend, **given, dense=dense, dropout=None)
    of_rows = partial(dense, bias=bias, seed=None)
    expected, found = (differentiate(function, FUSED, "bfloat16")[0] for function in (of_rows, compute))
    np.testing.assert_allclose(found[MASK > 0], expected[MASK > 0], atol=3e-2 * np.abs(expected).max())


@pytest.mark.skipif(BACKEND != "jax", reason="a program for a device that is not here")
def test_log_names_the_kernel_once(monkeypatch, caplog):
    import jax

    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(kernels, "has_cudnn", lambda: True)
    monkeypatch.setattr(kernels, "_attend_by_cudnn", kernel_here())
    kernels._name_kernel.cache_clear()
    bias, compute = attention_bias(keras.ops.convert_to_tensor(MASK)), lambda fused, bias, seed: fused[..., :WIDTH]
    with caplog.at_level("INFO", kernels.__name__):
        for _ in range(2):
            jax.eval_shape(
                lambda fused: kernels.attend(fused, bias, MASK, FULL, HEADS, compute, None),
                FUSED.astype(jax.numpy.bfloat16),
            )
    kernels._name_kernel.cache_clear()
    assert [record.getMessage() for record in caplog.records] == ["Attention: flash attention of cuDNN."]


# Splash attention of JAX for TPUs, interpreted elsewhere.

LONG = 384  # three blocks of 128
LONG_MASK = np.stack([np.ones(LONG), np.repeat([1, 2, 3, 0], [100, 128, 130, 26]), np.zeros(LONG)]).astype("int32")


def compare_with_dense(compute, pattern, mask, dtype):
    """Return the values and gradients of the dense kernel and of another for `mask`, of real tokens alone."""
    layer = MultiHeadSelfAttention(SHAPE, pattern=pattern, dtype=dtype, name="attention")
    bias, rng = attention_bias(keras.ops.convert_to_tensor(mask), pattern), np.random.default_rng(5)
    fused = rng.normal(size=(*mask.shape, 3 * WIDTH)).astype("float32")
    weights = rng.normal(size=(*mask.shape, WIDTH)) * (mask > 0)[..., None]
    dense = partial(layer._attend_densely, seed=None, relative=None, dropped=0)
    found = [
        differentiate(partial(function, bias=bias), fused, dtype, weights)
        for function in (dense, partial(kernels._attend_fused, seed=None, num_heads=HEADS, dropped=0, kernel=compute))
    ]
    return [(values[mask > 0], gradient) for values, gradient in found]


def is_on_tpu():
    import jax

    return jax.default_backend() == "tpu"


@pytest.mark.tpu
@pytest.mark.skipif(BACKEND != "jax", reason="a kernel of JAX")
@pytest.mark.slow_compiled
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 3e-2)])
@pytest.mark.parametrize(
    "pattern",
    [FULL, Window(2), Window(150), Causal(), Permutation(), Window(70, num_global=1), Blocks(64, num_global=1)],
    ids=repr,
)
def test_splash_attention_is_the_dense_one(pattern, dtype, tolerance):
    if is_on_tpu() and dtype == "float32":
        pytest.skip("a TPU multiplies float32 in bfloat16, and attention is dense there")
    mask = np.minimum(LONG_MASK, 1) if pattern.counts_from_text else LONG_MASK
    given = {"padding_mask": mask, "pattern": pattern, "is_interpreted": not is_on_tpu()}
    splash = partial(kernels.attend_by_splash, **given)
    (expected, expected_gradient), (found, gradient) = compare_with_dense(splash, pattern, mask, dtype)
    np.testing.assert_allclose(found, expected, atol=tolerance * np.abs(expected).max())
    np.testing.assert_allclose(gradient, expected_gradient, atol=tolerance * np.abs(expected_gradient).max())
    assert not np.any(gradient[2])  # finite, in a row of nothing but padding


@pytest.mark.skipif(BACKEND != "jax", reason="a kernel of JAX")
@pytest.mark.slow_compiled
def test_splash_attention_is_divided_over_rows_and_heads():
    import jax

    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("batch", "model"))
    splash = partial(kernels.attend_by_splash, padding_mask=LONG_MASK, pattern=FULL, mesh=mesh, is_interpreted=True)
    (expected, expected_gradient), (found, gradient) = compare_with_dense(splash, FULL, LONG_MASK, "float32")
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())
    np.testing.assert_allclose(gradient, expected_gradient, atol=1e-5 * np.abs(expected_gradient).max())


@pytest.mark.skipif(BACKEND != "jax", reason="a kernel of JAX")
@pytest.mark.parametrize(
    ("rows", "length", "dtype", "pattern", "is_chosen"),
    [
        (4, 512, "bfloat16", FULL, True),
        (4, 384, "bfloat16", Causal(), True),
        (4, 128, "bfloat16", FULL, False),  # dense moves less
        (4, 520, "bfloat16", FULL, False),  # no block divides it
        (4, 512, "float32", FULL, False),
        (3, 512, "bfloat16", FULL, False),  # not the same number of rows on each of two chips
        (4, 512, "bfloat16", Blocks(64), False),  # rows may be packed, and blocks count from each text
    ],
)
def test_splash_attention_is_chosen_for_tpus_and_long_rows(rows, length, dtype, pattern, is_chosen):
    fused, mask = keras.ops.zeros((rows, length, 3 * WIDTH), dtype), keras.ops.ones((rows, length), "int32")
    for platform, expected in (("tpu", is_chosen), ("cpu", False)):
        chips = np.array([SimpleNamespace(platform=platform)] * 2)
        with kernels.compiled_for(SimpleNamespace(devices=chips)):
            assert kernels.is_for_splash(fused, mask, pattern) is expected
    assert not kernels.is_for_splash(fused, mask, pattern)  # this machine has no TPU
