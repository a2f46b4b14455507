"""bfloat16 on a processor that has no products of it: they are computed in float32, to the same result."""

import platform
import re
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import ops

from keras_bert_flow.backends import products
from keras_bert_flow.backends.runtime import is_on_processor
from keras_bert_flow.models.backbone import BertBackbone
from keras_bert_flow.models.pretraining.masked_lm import BertPretrainer
from tests.oracles.small_bert import SMALL, make_inputs

PRODUCTS = {"mm", "bmm", "addmm", "baddbmm"}  # of PyTorch's calls
UNITS = {"float32": 2.0**-23, "bfloat16": 2.0**-7}  # between 1 and the next number; a rounding is half of it
RNG = np.random.default_rng(1)
LEFT, RIGHT = RNG.normal(size=(3, 4, 16)), RNG.normal(size=(3, 16, 5))
only_torch = pytest.mark.skipif(keras.backend.backend() != "torch", reason="the others multiply bfloat16 fast enough")


def listen_to_products(function):
    """Return the types of the factors of each product that PyTorch computes, forward and backward."""
    from torch.utils._python_dispatch import TorchDispatchMode

    found = set()

    class Listen(TorchDispatchMode):
        def __torch_dispatch__(self, operation, types, arguments=(), named=None):
            if operation._schema.name.removeprefix("aten::") in PRODUCTS:
                found.update(str(factor.dtype).removeprefix("torch.") for factor in arguments[-2:])
            return operation(*arguments, **(named or {}))

    with Listen():
        function()
    return found


def train_a_step():
    model = BertPretrainer(BertBackbone(**SMALL, dtype="mixed_bfloat16"))
    outputs = model(make_inputs(masks_per_sequence=2), training=True)
    (outputs["mlm"].sum() + outputs["nsp"].sum()).backward()


@pytest.mark.parametrize("dtype", UNITS)
@pytest.mark.parametrize("is_slow", [True, False])
@only_torch
def test_product_is_the_exact_one_rounded(monkeypatch, is_slow, dtype):
    monkeypatch.setattr(products, "IS_BFLOAT16_SLOW", is_slow)
    left, right = (ops.cast(ops.convert_to_tensor(factor), dtype) for factor in (LEFT, RIGHT))
    found = products.matmul(left, right)
    assert keras.backend.standardize_dtype(found.dtype) == dtype
    left, right, found = (
        ops.convert_to_numpy(ops.cast(part, "float32")).astype("float64") for part in (left, right, found)
    )
    # One rounding of the sum to its type, and those of 16 terms below 8 in float32.
    np.testing.assert_allclose(found, left @ right, rtol=UNITS[dtype] / 2, atol=16 * 8 * UNITS["float32"])


@only_torch
@pytest.mark.skipif(not is_on_processor(), reason="products of a processor")
@pytest.mark.parametrize(("is_slow", "types"), [(True, {"float32"}), (False, {"bfloat16", "float32"})])
def test_no_product_of_a_step_is_slow(monkeypatch, is_slow, types):
    monkeypatch.setattr(products, "IS_BFLOAT16_SLOW", is_slow)
    assert listen_to_products(train_a_step) == types  # next sentence is told in float32, always


@only_torch
def test_bfloat16_is_slow_on_processors_without_avx512():
    if platform.machine() != "x86_64" or not Path("/proc/cpuinfo").is_file():
        pytest.skip("the processor is asked as Linux tells it of x86")
    flags = set(re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)[1].split())
    if {"avx512bw", "avx512vl", "avx512dq"} <= flags:
        assert not products.IS_BFLOAT16_SLOW
    elif not {"avx512bw", "avx_ne_convert"} & flags:
        assert products.IS_BFLOAT16_SLOW


def test_other_backends_multiply_as_keras():
    assert products.product_dtype("float32") == "float32"
    if keras.backend.backend() != "torch":
        assert products.product_dtype("bfloat16") == "bfloat16"
        factors = [ops.cast(ops.convert_to_tensor(factor), "bfloat16") for factor in (LEFT, RIGHT)]
        found, expected = (ops.cast(multiply(*factors), "float32") for multiply in (products.matmul, ops.matmul))
        np.testing.assert_array_equal(ops.convert_to_numpy(found), ops.convert_to_numpy(expected))
