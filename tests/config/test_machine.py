"""What this machine decides: the threads of runs at the same time, and the precision that `auto` stands for.

`precision: auto` becomes one precision before a key is made, by what the processor or the accelerator can do.
"""

import os

import pytest

from keras_bert_flow.cli.options import choose_backend
from keras_bert_flow.config import machine, pipeline
from keras_bert_flow.config.machine import THREADS, choose_precision, share_cores
from keras_bert_flow.config.pipeline import PipelineConfig, resolve_precision
from keras_bert_flow.results.stages.models import pretraining_key
from keras_bert_flow.results.stages.tasks import evaluation_key, finetuning_key

AUTOMATIC = PipelineConfig(backend="torch", pretraining={"precision": "auto"}, finetuning={"precision": "auto"})


@pytest.mark.parametrize(("runs", "threads"), [(2, "4"), (3, "2"), (8, "1"), (20, "1")])
def test_runs_share_the_cores(monkeypatch, runs, threads):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    for name in THREADS:
        monkeypatch.delenv(name, raising=False)
    assert share_cores(1) == {}
    assert share_cores(runs) == dict.fromkeys(THREADS, threads)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert share_cores(runs) == {name: threads for name in THREADS if name != "OMP_NUM_THREADS"}


def describe_processor(folder, monkeypatch, flags):
    """Let the processor have these flags, and return the file that says so."""
    path = folder / "cpuinfo"
    path.write_text(f"processor\t: 0\nflags\t\t: {flags}\n\n")
    monkeypatch.setattr(machine, "CPU_INFO", path)
    return path


@pytest.mark.parametrize(
    ("backend", "flags", "expected"),
    [
        ("torch", "fma avx512_bf16", "mixed_bfloat16"),
        ("tensorflow", "amx_bf16", "mixed_bfloat16"),
        ("torch", "avx2 avx512f", "float32"),
        ("tensorflow", "", "float32"),
        ("jax", "avx512_bf16 amx_bf16", "float32"),
    ],
)
def test_choice_on_a_processor(tmp_path, monkeypatch, backend, flags, expected):
    describe_processor(tmp_path, monkeypatch, flags)
    monkeypatch.setattr(machine, "ACCELERATORS", ())
    assert choose_precision(backend) == expected


def test_flags_are_those_of_the_first_processor(tmp_path, monkeypatch):
    path = describe_processor(tmp_path, monkeypatch, "fpu")
    monkeypatch.setattr(machine, "ACCELERATORS", ())
    with open(path, "a") as file:
        file.write("processor\t: 1\nflags\t\t: fpu avx512_bf16\n")
    assert choose_precision("torch") == "float32"
    path.unlink()
    assert choose_precision("torch") == "float32"


@pytest.mark.parametrize(
    ("answer", "expected"), [(True, "mixed_bfloat16"), (False, "float32"), (None, "mixed_bfloat16")]
)
def test_accelerator_comes_before_the_processor(tmp_path, monkeypatch, answer, expected):
    describe_processor(tmp_path, monkeypatch, "amx_bf16")
    monkeypatch.setattr(machine, "ACCELERATORS", ("/dev/null",))
    monkeypatch.setattr(machine, "ask_backend", lambda backend: answer)
    assert choose_precision("torch") == expected


@pytest.mark.slow
def test_backend_without_accelerator_is_asked_in_a_process_of_its_own(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert machine.ask_backend("torch") is None
    assert machine.ask_backend("jax") is None
    monkeypatch.setattr(machine, "CHILD", "no_such_module")
    assert machine.ask_backend("torch") is None


def test_resolved_configuration_has_the_keys_of_the_precision_that_was_chosen(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr(pipeline, "choose_precision", lambda backend: "mixed_bfloat16")
    resolved = resolve_precision(AUTOMATIC)
    named = PipelineConfig(
        backend="torch", pretraining={"precision": "mixed_bfloat16"}, finetuning={"precision": "mixed_bfloat16"}
    )
    assert resolved == named
    assert pretraining_key(resolved, tmp_path) == pretraining_key(named, tmp_path)
    monkeypatch.setattr(pipeline, "choose_precision", lambda backend: "float32")
    assert pretraining_key(resolve_precision(AUTOMATIC), tmp_path) != pretraining_key(named, tmp_path)
    assert resolve_precision(named) is named


def test_no_key_is_made_of_the_word(tmp_path):
    for make in (
        lambda: pretraining_key(AUTOMATIC, tmp_path),
        lambda: finetuning_key(AUTOMATIC, tmp_path),
        lambda: evaluation_key(AUTOMATIC, tmp_path, tmp_path),
    ):
        with pytest.raises(ValueError, match="A key must name the precision. Received: .*precision=auto"):
            make()


def test_flows_and_commands_resolve_it_first(tmp_path, monkeypatch):
    from flows.parameters import resolve_config, write_config
    from keras_bert_flow.cli.options import choose_backend

    monkeypatch.setattr(pipeline, "choose_precision", lambda backend: "mixed_bfloat16")
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    resolved = resolve_config(str(write_config(AUTOMATIC.model_copy(update={"runs": str(tmp_path)}))))
    chosen = choose_backend(AUTOMATIC, None)
    for config in (resolved, chosen):
        assert config.pretraining.precision == config.finetuning.precision == "mixed_bfloat16"


def test_command_says_what_was_chosen(monkeypatch, capsys):
    monkeypatch.setattr(pipeline, "choose_precision", lambda backend: "mixed_bfloat16")
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    settings = PipelineConfig(pretraining={"precision": "auto"})
    assert choose_backend(settings, None).pretraining.precision == "mixed_bfloat16"
    said = capsys.readouterr()
    assert said.err == "kbf: pretraining.precision is mixed_bfloat16, for torch on this machine.\n" and not said.out
