"""`precision: auto` becomes one precision before a key is made, by what the processor or the accelerator can do."""

import pytest

from keras_bert_flow.cli.options import choose_backend
from keras_bert_flow.config import precision
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.config.precision import (
    choose_for_processor,
    choose_precision,
    read_processor_flags,
    resolve_precision,
)
from keras_bert_flow.results.stages.evaluation import evaluation_key
from keras_bert_flow.results.stages.finetuning import finetuning_key
from keras_bert_flow.results.stages.pretraining import pretraining_key

AUTOMATIC = PipelineConfig(backend="torch", pretraining={"precision": "auto"}, finetuning={"precision": "auto"})


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
def test_choice_on_a_processor(backend, flags, expected):
    assert choose_for_processor(backend, flags.split()) == expected


def test_flags_are_those_of_the_processor(tmp_path):
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nflags\t\t: fpu avx512_bf16\n\nprocessor\t: 1\nflags\t\t: fpu\n")
    assert read_processor_flags(tmp_path / "cpuinfo") == {"fpu", "avx512_bf16"}
    assert read_processor_flags(tmp_path / "missing") == set()


@pytest.mark.parametrize(
    ("answer", "expected"), [(True, "mixed_bfloat16"), (False, "float32"), (None, "mixed_bfloat16")]
)
def test_accelerator_comes_before_the_processor(monkeypatch, answer, expected):
    monkeypatch.setattr(precision, "ACCELERATORS", ("/dev/null",))
    monkeypatch.setattr(precision, "ask_backend", lambda backend: answer)
    monkeypatch.setattr(precision, "read_processor_flags", lambda: {"amx_bf16"})
    assert choose_precision("torch") == expected


@pytest.mark.slow
def test_backend_without_accelerator_is_asked_in_a_process_of_its_own(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert precision.ask_backend("torch") is None
    assert precision.ask_backend("jax") is None
    monkeypatch.setattr(precision, "CHILD", "no_such_module")
    assert precision.ask_backend("torch") is None


def test_resolved_configuration_has_the_keys_of_the_precision_that_was_chosen(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr(precision, "choose_precision", lambda backend: "mixed_bfloat16")
    resolved = resolve_precision(AUTOMATIC)
    named = PipelineConfig(
        backend="torch", pretraining={"precision": "mixed_bfloat16"}, finetuning={"precision": "mixed_bfloat16"}
    )
    assert resolved == named
    assert pretraining_key(resolved, tmp_path) == pretraining_key(named, tmp_path)
    monkeypatch.setattr(precision, "choose_precision", lambda backend: "float32")
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
    from flows.parameters import settle_config, write_config
    from keras_bert_flow.cli.options import choose_backend

    monkeypatch.setattr(precision, "choose_precision", lambda backend: "mixed_bfloat16")
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    settled = settle_config(str(write_config(AUTOMATIC.model_copy(update={"runs": str(tmp_path)}))))
    chosen = choose_backend(AUTOMATIC, None)
    for config in (settled, chosen):
        assert config.pretraining.precision == config.finetuning.precision == "mixed_bfloat16"


def test_command_says_what_was_chosen(monkeypatch, capsys):
    monkeypatch.setattr(precision, "choose_precision", lambda backend: "mixed_bfloat16")
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    settings = PipelineConfig(pretraining={"precision": "auto"})
    assert choose_backend(settings, None).pretraining.precision == "mixed_bfloat16"
    said = capsys.readouterr()
    assert said.err == "kbf: pretraining.precision is mixed_bfloat16, for torch on this machine.\n" and not said.out
