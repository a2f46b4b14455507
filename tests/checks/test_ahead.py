"""Devices by name, what a program in XLA's text form moves and multiplies, and what is said of it."""

import os
from pathlib import Path

import pytest

from keras_bert_flow.checks import ahead
from keras_bert_flow.checks.ahead import BANDWIDTH_SHARE, GPUS, LAUNCH_SECONDS, PEAK_SHARE, find_device, read_program
from keras_bert_flow.config.loading import load_config
from tests.commands import assert_refused, kbf

pytestmark = pytest.mark.any_backend

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
    device = find_device("h100")
    program = read_program(PROGRAM, device)
    product, attention = 2 * 8 * 16 * 32, 4 * 2 * 4 * 6 * 6 * 8
    assert program.flops == product + attention
    moved = [(8 * 16 + 16 * 32 + 8 * 32) * 2, 8 * 32 * 2 + 2 * 4 * 6 * 8 * 4, 2 * 8 * 32 * 2, 8 * 32 * (2 + 4)]
    assert (program.kernels, program.moved_bytes) == (4, sum(moved))
    assert program.collectives == {"all-reduce": [1, 8 * 32 * 2]}
    at_best = sum(
        max(size / (BANDWIDTH_SHARE * 3.35e12), flops / (PEAK_SHARE * 989e12)) + LAUNCH_SECONDS
        for size, flops in zip(moved, [product, attention, 0, 0], strict=True)
    )
    assert program.seconds == pytest.approx(at_best)


def test_products_are_those_that_jax_counts():
    jax = pytest.importorskip("jax")
    shapes = [jax.ShapeDtypeStruct(shape, "float32") for shape in ((3, 5, 7), (7, 11))]
    text = jax.jit(lambda a, b: a @ b).lower(*shapes).compile().as_text()  # for this processor
    program = read_program(text, find_device("v5e-4"))
    assert program.flops == 2 * 3 * 5 * 7 * 11
    assert program.moved_bytes == 4 * (3 * 5 * 7 + 7 * 11 + 3 * 5 * 11)


@pytest.mark.parametrize(
    ("name", "chips", "topology", "gigabytes"),
    [
        ("v5e-8", 8, "v5e:2x4", 16),
        ("v5p-16", 8, "v5p:2x2x2", 95),
        ("v5p-32", 16, "v5p:2x2x4", 95),
        ("h200", 1, "1x1x1", 141),
    ],
)
def test_devices_have_their_chips(name, chips, topology, gigabytes):
    device = find_device(name)
    assert (device.chips, device.topology, device.memory_bytes) == (chips, topology, gigabytes * 1e9)
    assert ("core_count" in device.target) == (name in GPUS)


@pytest.mark.parametrize("name", ["h1000", "v5e-7", "v5p-8x", "v5e", "v5e-512", ""])
def test_unknown_devices_are_refused(name):
    with pytest.raises(ValueError, match=r"A device must be one of h100, .*such as v4-8, v5e-4, .*Received: "):
        find_device(name)


def test_missing_compiler_names_the_install_line(monkeypatch, tmp_path):
    monkeypatch.setenv(ahead.COMPILERS, str(tmp_path))
    for name, wheel in (("h100", r"jax-cuda12-plugin==\d"), ("v5e-8", "libtpu")):
        with pytest.raises(ValueError, match=f"needs a compiler.*pip install --no-deps --target .*{wheel}"):
            ahead.check_device(name, is_planned=True)


def test_command_refuses_before_it_plans(tmp_path):
    empty = {ahead.COMPILERS: str(tmp_path)}
    config = Path(__file__).parents[2] / "configs" / "bert_base.yaml"
    assert_refused(kbf("run", config, "--device", "h100"), "`--device` must go with --plan")
    assert_refused(kbf("run", config, "--plan", "--device", "h1000"), "A device must be one of", "Received: h1000")
    assert_refused(kbf("run", config, "--plan", "--device", "h100", environment=empty), "pip install --no-deps")


FOUND = {
    "kernels": 1200,
    "moved_bytes": 3e10,
    "flops": 4.5e12,
    "seconds": 0.015,
    "memory_bytes": 4 * 2**30,
    "compile_seconds": 40.0,
    "sequence_length": 128,
    "collectives": {"all-reduce": [5, 3e8]},
}


def test_lines_say_what_fits_and_what_to_change():
    config = load_config(None, ["pretraining.batch_size=64", "pretraining.total_steps=1000"])
    lines = ahead._describe(config, find_device("v5e-8"), FOUND)
    assert "v5e-8, 8 chips" in lines[0] and "64 sequences of 128 tokens" in lines[0]
    assert lines[1] == "Memory: 4.00 GiB a chip of 14.9: fits."
    assert "1,200 kernels move 30.0 GB and multiply 4.50 TFLOP a chip: 15.0 ms at best" in lines[2]
    assert "5 all-reduce of 300.0 MB" in lines[3] and "1,000 steps take 0.00 hours" in lines[4]
    large = FOUND | {"memory_bytes": 15e9}
    for change, advice in (
        ("pretraining.rematerialise=false", "rematerialise=true"),
        ("pretraining.rematerialise=true", "pretraining.batch_size=32 and pretraining.accumulate_batches=2"),
    ):
        line = ahead._describe(load_config(None, [change, "pretraining.batch_size=64"]), find_device("v5e-8"), large)[1]
        assert "does not fit" in line and advice in line


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get(ahead.COMPILERS), reason="KBF_COMPILERS names no compilers")
@pytest.mark.parametrize(("name", "collective"), [("h100", None), ("v5e-4", "all-reduce")])
def test_step_is_compiled_for_a_device(name, collective):
    settings = ["model.size=tiny", "pretraining.batch_size=32", "pretraining.precision=mixed_bfloat16"]
    config = load_config(Path(__file__).parents[2] / "configs" / "bert_base.yaml", settings)
    device = find_device(name)
    found = ahead._compile(config, device, ahead.find_compilers(device))
    # The weights and two moments in float32, of 4.4 million parameters and the heads
    assert 3 * 4 * 4.4e6 < found["memory_bytes"] < 2**30 and found["kernels"] > 100
    assert set(found["collectives"]) == ({collective} if collective else set())
