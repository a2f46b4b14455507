"""What is said of a step that was compiled for a device."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from keras_bert_flow.checks import ahead
from keras_bert_flow.checks.devices import find_device
from keras_bert_flow.config.loading import load_config
from tests.commands import assert_refused, kbf

pytestmark = pytest.mark.any_backend


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


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "single"}, r"must use all 8 chips of v5e-8\. Received: kind=single"),
        ({"devices": 4}, r"must use all 8 chips of v5e-8\. Received: kind=auto, devices=4"),
        ({"kind": "model_parallel", "model_parallel": 3}, r"must divide the chips of the device\. Received: 3, v5e-8"),
        ({"kind": "model_parallel", "model_parallel": 2}, r"Each device must get as many.*batch_size=30 for 4 devices"),
    ],
)
def test_chips_that_training_would_leave_unused_are_told(settings, message):
    changes = [f"distribution.{name}={value}" for name, value in settings.items()]
    with pytest.raises(ValueError, match=message):
        ahead._check_chips(load_config(None, ["pretraining.batch_size=30", *changes]), find_device("v5e-8"))


FOUND = {
    "kernels": 1200,
    "moved_bytes": 3e10,
    "flops": 4.5e12,
    "seconds": 0.015,
    "memory_bytes": 4 * 2**30,
    "compile_seconds": 40.0,
    "sequence_length": 128,
    "collectives": {"all-reduce": [200_000_000, 99_000_000, 1_000_000]},
}


def test_lines_say_what_fits_and_what_to_change():
    config = load_config(None, ["pretraining.batch_size=64", "pretraining.total_steps=1000"])
    lines = ahead._describe(config, find_device("v5e-8"), FOUND)
    assert "v5e-8, 8 chips" in lines[0] and "64 sequences of 128 tokens" in lines[0]
    assert lines[1] == "Memory: 4.00 GiB a chip of 14.9: fits."
    assert "1,200 kernels move 30.0 GB and multiply 4.50 TFLOP a chip: 15.0 ms at best" in lines[2]
    assert (
        "3 all-reduce of 300.0 MB a step, at least 1.5 ms, not in the time above" in lines[3]
        and "1,000 steps take 0.00 hours" in lines[4]
    )
    unknown = replace(find_device("v5e-8"), link_bytes_per_second=0.0)
    assert "3 all-reduce of 300.0 MB a step, not in the time above" in ahead._describe(config, unknown, FOUND)[3]
    large = FOUND | {"memory_bytes": 15e9}
    for change, advice in (
        ("pretraining.rematerialise=false", "rematerialise=true"),
        ("pretraining.rematerialise=true", "pretraining.batch_size=32 and pretraining.accumulate_batches=2"),
        ("pretraining.batch_size=8", "distribution.kind=model_parallel and distribution.model_parallel=2"),
    ):
        settings = ["pretraining.batch_size=64", "pretraining.rematerialise=true", change]
        line = ahead._describe(load_config(None, settings), find_device("v5e-8"), large)[1]
        assert "does not fit" in line and advice in line


def test_a_long_compilation_names_the_setting_that_shortens_it():
    def first_line(seconds, *settings, device="v5e-8"):
        found = FOUND | {"compile_seconds": seconds}
        return ahead._describe(load_config(None, settings), find_device(device), found)[0]

    assert "compiled for it in 301 s: Set pretraining.scan_layers=true to compile faster" in first_line(301)
    for none in (
        first_line(299),
        first_line(301, device="h100"),
        first_line(301, "pretraining.scan_layers=true"),
        first_line(301, "backend=torch"),
        first_line(301, "model.family=albert", "records.objective=mlm_sop"),
    ):
        assert none.endswith(" s:")


@pytest.mark.parametrize("is_endless", [False, True])
def test_compiler_works_beside_the_plan_and_ends_with_it(is_endless, monkeypatch, tmp_path):
    started = []

    def start(phase, device, folder):
        answer = json.dumps(FOUND | {"sequence_length": phase.records.sequence_length})
        program = "import time; time.sleep(600)" if is_endless else f"print({answer!r})"
        command = [sys.executable, "-c", program]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return started[-1]

    monkeypatch.setattr(ahead, "_start", start)
    monkeypatch.setattr(ahead, "find_compilers", lambda device: tmp_path)
    config = load_config(None, ["second_phase={sequence_length: 512, total_steps: 9}"])
    with pytest.raises(KeyError, match="plan"), ahead.compiling_for(config, "h100") as describe:
        assert len(started) == 1  # before it is asked
        if not is_endless:
            lines = "\n".join(describe())
            assert "of 128 tokens" in lines and "of 512 tokens" in lines and len(started) == 2
        raise KeyError("plan")
    assert all(process.returncode is not None for process in started)


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get(ahead.COMPILERS), reason="KBF_COMPILERS names no compilers")
@pytest.mark.parametrize(("name", "collective"), [("h100", None), ("v5e-4", "all-reduce"), ("like: h100", None)])
def test_step_is_compiled_for_a_device(name, collective, tmp_path):
    if ":" in name:  # described by a file: a GPU of PCIe
        path = tmp_path / "device.yaml"
        path.write_text(f"{name}\ncores: 114\nbytes_per_second: 2.0e12\npeak_flops: 756e12\ngigahertz: 1.755\n")
        name = str(path)
    settings = ["model.size=tiny", "pretraining.batch_size=32", "pretraining.precision=mixed_bfloat16"]
    config = load_config(Path(__file__).parents[2] / "configs" / "bert_base.yaml", settings)
    device = find_device(name)
    found = ahead._finish(ahead._start(config, device, ahead.find_compilers(device)), device)
    # The weights and two moments in float32, of 4.4 million parameters and the heads
    assert 3 * 4 * 4.4e6 < found["memory_bytes"] < 2**30 and found["kernels"] > 100
    assert set(found["collectives"]) == ({collective} if collective else set())
