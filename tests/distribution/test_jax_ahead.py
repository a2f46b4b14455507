"""Steps compiled for devices that are not here: what their programs move, multiply and send."""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from keras_bert_flow.checks.ahead import COMPILERS, compiler_environment, find_compilers
from keras_bert_flow.checks.devices import find_device
from tests.patience import PATIENCE_SECONDS

pytest.importorskip("jax")
pytestmark = pytest.mark.any_backend

from keras_bert_flow.distribution.jax_ahead import BANDWIDTH_SHARE, PEAK_SHARE, read_program  # noqa: E402

PROGRAM = """HloModule jit_step, is_scheduled=true

%fused (a: bf16[8,16], b: bf16[16,32]) -> bf16[8,32] {
  %a = bf16[8,16]{1,0} parameter(0)
  %b = bf16[16,32]{1,0} parameter(1)
  ROOT %dot.1 = bf16[8,32]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

ENTRY %main (x: bf16[8,16], w: bf16[16,32]) -> f32[8,32] {
  %x = bf16[8,16]{1,0} parameter(0)
  %w = bf16[16,32]{1,0:T(8,128)(2,1)} parameter(1)
  %product = bf16[8,32]{1,0} fusion(%x, %w), kind=kCustom, calls=%fused
  %pair = (f32[2,4,6,8]{3,2,1,0}, u8[0]{0}) custom-call(%product), custom_call_target="__cudnn$fmhaSoftmax"
  %got = f32[2,4,6,8]{3,2,1,0} get-tuple-element(%pair), index=0
  %start = bf16[8,32]{1,0} all-reduce-start(%product), replica_groups={{0,1}}, to_apply=%sum
  %done = bf16[8,32]{1,0} all-reduce-done(%start)
  ROOT %last = f32[8,32]{1,0} convert(%done)
}
"""


def test_program_is_added_up():
    program = read_program(PROGRAM, bytes_per_second=3e12, peak_flops=9e14, launch_seconds=2e-6)
    product, attention = 2 * 8 * 16 * 32, 4 * 2 * 4 * 6 * 6 * 8
    assert program.flops == product + attention
    moved = [(8 * 16 + 16 * 32 + 8 * 32) * 2, 8 * 32 * 2 + 2 * 4 * 6 * 8 * 4, 2 * 8 * 32 * 2, 8 * 32 * (2 + 4)]
    assert (program.kernels, program.moved_bytes) == (4, sum(moved))
    assert program.collectives == {"all-reduce": [8 * 32 * 2]}
    at_best = sum(
        max(size / (BANDWIDTH_SHARE * 3e12), flops / (PEAK_SHARE * 9e14)) + 2e-6
        for size, flops in zip(moved, [product, attention, 0, 0], strict=True)
    )
    assert program.seconds == pytest.approx(at_best)


def test_products_are_those_that_jax_counts():
    jax = pytest.importorskip("jax")
    shapes = [jax.ShapeDtypeStruct(shape, "float32") for shape in ((3, 5, 7), (7, 11))]
    text = jax.jit(lambda a, b: a @ b).lower(*shapes).compile().as_text()  # for this processor
    program = read_program(text, 1e12, 1e14)
    assert program.flops == 2 * 3 * 5 * 7 * 11
    assert program.moved_bytes == 4 * (3 * 5 * 7 + 7 * 11 + 3 * 5 * 11)


def test_loops_are_counted_once_for_each_turn():
    import jax

    def step(values, weights):
        return jax.lax.scan(lambda rows, matrix: (jax.numpy.tanh(rows @ matrix), rows), values, weights)

    shapes = [jax.ShapeDtypeStruct(shape, "float32") for shape in ((3, 64), (5, 64, 64))]
    program = read_program(jax.jit(step).lower(*shapes).compile().as_text(), 1e12, 1e14)  # for this processor
    assert program.flops == 5 * 2 * 3 * 64 * 64
    # A turn reads one matrix of the stack, at most three times: the slice is written, and read by the product.
    assert 1 < program.moved_bytes / (5 * 64 * 64 * 4) < 3.6


# As libtpu writes a scan of 5 layers, without a number of turns, and with a sum over chips in its body.
LOOP = """HloModule jit_step

%slice (stack: f32[5,8,16], at: s32[]) -> f32[8,16] {
  %stack = f32[5,8,16]{2,1,0} parameter(0)
  %at = s32[] parameter(1)
  %zero = s32[] constant(0)
  %one = f32[1,8,16]{2,1,0} dynamic-slice(%stack, %at, %zero, %zero), dynamic_slice_sizes={1,8,16}
  ROOT %layer = f32[8,16]{1,0} bitcast(%one)
}

%keep (kept: f32[5,8,16], new: f32[8,16], at.1: s32[]) -> f32[5,8,16] {
  %kept = f32[5,8,16]{2,1,0} parameter(0)
  %new = f32[8,16]{1,0} parameter(1)
  %at.1 = s32[] parameter(2)
  %zero.1 = s32[] constant(0)
  %wide = f32[1,8,16]{2,1,0} bitcast(%new)
  ROOT %all = f32[5,8,16]{2,1,0} dynamic-update-slice(%kept, %wide, %at.1, %zero.1, %zero.1)
}

%body (state: (s32[], f32[5,8,16], f32[5,8,16])) -> (s32[], f32[5,8,16], f32[5,8,16]) {
  %state = (s32[], f32[5,8,16]{2,1,0}, f32[5,8,16]{2,1,0}) parameter(0)
  %turn = s32[] get-tuple-element(%state), index=0
  %weights = f32[5,8,16]{2,1,0} get-tuple-element(%state), index=1
  %gradients = f32[5,8,16]{2,1,0} get-tuple-element(%state), index=2
  %part = f32[8,16]{1,0} fusion(%weights, %turn), kind=kLoop, calls=%slice
  %sum = f32[8,16]{1,0} all-reduce(%part), replica_groups={{0,1}}, to_apply=%add
  %stored = f32[5,8,16]{2,1,0} fusion(%gradients, %sum, %turn), kind=kLoop, calls=%keep
  ROOT %next = (s32[], f32[5,8,16]{2,1,0}, f32[5,8,16]{2,1,0}) tuple(%turn, %weights, %stored)
}

%condition (state.1: (s32[], f32[5,8,16], f32[5,8,16])) -> pred[] {
  %state.1 = (s32[], f32[5,8,16]{2,1,0}, f32[5,8,16]{2,1,0}) parameter(0)
  %bound = s32[]{:T(128)} constant(5)
  %turn.1 = s32[] get-tuple-element(%state.1), index=0
  ROOT %less = pred[] compare(%turn.1, %bound), direction=LT
}

ENTRY %main (first: (s32[], f32[5,8,16], f32[5,8,16])) -> f32[8,16] {
  %first = (s32[], f32[5,8,16]{2,1,0}, f32[5,8,16]{2,1,0}) parameter(0)
  %loop = (s32[], f32[5,8,16]{2,1,0}, f32[5,8,16]{2,1,0}) while(%first), condition=%condition, body=%body
  %last = f32[5,8,16]{2,1,0} get-tuple-element(%loop), index=2
  %taken = ((f32[5,8,16]{2,1,0}), f32[1,8,16]{2,1,0:S(1)}, s32[]{:S(2)}) slice-start(%last), slice={[4:5], [0:8]}
  ROOT %chosen = f32[1,8,16]{2,1,0:S(1)} slice-done(%taken)
}
"""


def test_loop_moves_and_sends_one_layer_of_the_stack_in_each_turn():
    program = read_program(LOOP, 1e12, 1e14)
    layer = 8 * 16 * 4
    assert program.kernels == 5 * 3 + 1
    assert program.collectives == {"all-reduce": [layer] * 5}
    # A turn reads and writes a layer three times; two of its kernels read the number of the turn, of 4 bytes.
    assert program.moved_bytes == 5 * (3 * 2 * layer + 2 * 4) + 2 * (layer + 4)
    with pytest.raises(ValueError, match="A loop of a program must have a number of turns"):
        read_program(LOOP.replace("direction=LT", "direction=NE"), 1e12, 1e14)


# As libtpu writes them for v5e: `left` (batch, rows, contracted) and `right` in the order that `dim_labels` says.
def test_splash_attention_multiplies_the_blocks_of_its_grid():
    arrays = {"grid": "s8[1,4,2]", "mask": "s8[1,4,2]", "query": "bf16[7,3,512,64]", "texts": "s32[7,512,128]"}
    parameters = [f"  %{name} = {kind} parameter({place})" for place, (name, kind) in enumerate(arrays.items())]
    call = ', custom_call_target="tpu_custom_call", kernel_metadata={'
    lines = [
        f"  %splash_mha_{name}.1 = (f32[7,512,64], bf16[7,3,512,64]) custom-call(%grid, %mask, %query, %texts){call}"
        for name in ("fwd_segmented_residuals", "dkv_segmented_no_residuals")
    ]
    text = "\n".join(["ENTRY %main () -> f32[1] {", *parameters, *lines, "}"])
    # Eight blocks of 128 queries and 128 keys: two products in the forward pass, five in the backward pass
    assert read_program(text, 1e12, 1e14).flops == (2 + 5) * 2 * 7 * 3 * 8 * 128 * 128 * 64


CONVOLUTIONS = {
    "f32[32,128] convolution(f32[32,64] %a, f32[64,128] %b), dim_labels=bf_io->bf": 32 * 64 * 128,
    # A batch of 32 products: 128 × 128 by 128 × 64
    "f32[32,128,64] convolution(f32[32,128,128] %a, f32[32,128,64] %b), "
    "window={size=32 stride=31 lhs_dilate=32}, dim_labels=0bf_0io->0bf": 32 * 128 * 128 * 64,
    "f32[32,64,128] convolution(f32[32,128,64] %a, f32[32,128,128] %b), "
    "window={size=32 stride=32 pad=31_31 lhs_dilate=31 rhs_reversal=1}, dim_labels=0fb_0io->0bf": 32 * 64 * 128 * 128,
    # The gradient of a kernel: rows of 32 sequences of 128 tokens are summed over.
    "f32[128,256,1] convolution(f32[32,128,128] %a, f32[32,128,256] %b), window={size=32}, dim_labels=0fb_0io->bf0": 32
    * 128
    * 128
    * 256,
    "f32[32,20,128] convolution(f32[32,20,64] %a, f32[64,128,1] %b), window={size=1}, dim_labels=b0f_io0->b0f": 32
    * 20
    * 64
    * 128,
}


@pytest.mark.parametrize("line", CONVOLUTIONS)
def test_convolutions_are_counted_as_the_products_that_they_are(line):
    kind, _, rest = line.partition(" ")
    arrays = rest.partition("(")[2].partition(")")[0].split(", ")
    parameters = [f"  {array.split()[1]} = {array.split()[0]} parameter({place})" for place, array in enumerate(arrays)]
    rest = rest.replace(", ".join(arrays), "%a, %b")
    text = "\n".join(["ENTRY %main () -> f32[1] {", *parameters, f"  ROOT %c = {kind} {rest}", "}"])
    assert read_program(text, 1e12, 1e14).flops == 2 * CONVOLUTIONS[line]


# What a slice of chips would do. The numbers of rows on a chip are those of no other axis in `program_child`.
compiled = pytest.mark.skipif(not os.environ.get(COMPILERS), reason="KBF_COMPILERS names no compilers")


@functools.cache
def compile_elsewhere(name: str, step: str, rows: int, count: int = 1) -> dict[str, Any]:
    """Compile a step in a process of its own, and return what `program_child` says of it."""
    device = find_device(name)
    folder = find_compilers(device)
    done = subprocess.run(
        (sys.executable, "-m", "tests.distribution.program_child", name, folder, step, str(rows), str(count)),
        env=os.environ | compiler_environment(device, folder, count),
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@compiled
@pytest.mark.parametrize("step", ["pretraining", "classification"])
def test_gradients_are_summed_over_chips_at_once(step):
    found = compile_elsewhere("v5e-8", step, 8 * 7)
    assert set(found["collectives"]) == {"all-reduce"}
    sizes = found["collectives"]["all-reduce"]
    # Those of kernels in bfloat16, and those of the embeddings and norms in float32; what remains are sums and counts.
    assert sizes[1] > 20 * sum(sizes[2:])
    # The table, 0.37 of these weights, is sent in both types: 0.63 · 2 + 0.37 · (2 + 4) = 3.5 bytes for each weight.
    assert sum(sizes) < 3.6 * found["weights"]
    assert found["host"] == found["whole_batches"] == []


@pytest.mark.slow
@compiled
def test_evaluation_sends_sums_alone():
    found = compile_elsewhere("v5e-8", "evaluation", 8 * 7)
    assert sum(map(sum, found["collectives"].values())) < 1000
    assert found["host"] == found["whole_batches"] == []


@pytest.mark.slow
@compiled
def test_more_chips_hold_less_each():
    few, many = (compile_elsewhere(f"v5e-{chips}", "pretraining", 32 * 63) for chips in (8, 32))
    assert many["host"] == many["whole_batches"] == []
    assert 0.9 * few["state_bytes"] < many["state_bytes"] < few["state_bytes"]  # the same weights, and less of a batch
    assert many["temporary_bytes"] < 0.5 * few["temporary_bytes"]  # a quarter of the rows, and gradients of all weights


@pytest.mark.slow
@compiled
def test_copy_that_chips_share_is_divided():
    whole, shared = (compile_elsewhere("v5e-4", "pretraining", 4 * 7, count) for count in (1, 4))
    assert shared["host"] == []
    assert shared["state_bytes"] < 0.4 * whole["state_bytes"]  # what is not divided: positions, norms, some biases
    assert shared["flops"] == pytest.approx(whole["flops"], rel=0.1)  # of 28 rows a quarter each, or 7 rows all


@pytest.mark.slow
@compiled
@pytest.mark.parametrize("count", [1, 4])
def test_scan_multiplies_and_sends_what_its_layers_do(count):
    plain, scanned = (compile_elsewhere("v5e-4", f"pretraining {kind}", 4 * 7, count) for kind in ("deep", "scanned"))
    assert scanned["flops"] == pytest.approx(plain["flops"], rel=1e-3)
    assert set(scanned["collectives"]) == set(plain["collectives"]) == {"all-reduce"}
    sizes = [found["collectives"]["all-reduce"] for found in (scanned, plain)]
    assert sum(sizes[0]) == pytest.approx(sum(sizes[1]), rel=0.02)
    assert scanned["state_bytes"] == plain["state_bytes"]
    assert scanned["host"] == scanned["whole_batches"] == []


@pytest.mark.slow
@compiled
@pytest.mark.parametrize("count", [1, 4])
def test_long_rows_attend_by_splash_attention_on_each_chip(count):
    found = compile_elsewhere("v5e-4", "pretraining long", 4 * 7, count)
    assert found["splash"] == 2 * 2  # of two layers, forward and backward
    assert set(found["collectives"]) == {"all-reduce"}
    assert found["host"] == found["whole_batches"] == []


@pytest.mark.slow
@compiled
@pytest.mark.parametrize("step", ["pretraining", "classification", "evaluation"])
def test_gpu_computes_without_the_host(step):
    found = compile_elsewhere("h100", step, 7)
    assert found["host"] == [] and found["collectives"] == {}
