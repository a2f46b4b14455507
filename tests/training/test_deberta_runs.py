"""Runs of DeBERTa: killed ones end in the same bits, and its predictions teach another family."""

import numpy as np
import pytest

import keras_bert_flow as kbf
from keras_bert_flow.config.pretraining import DistillationConfig, ModelConfig
from keras_bert_flow.data.model_tokenizer import read_tokenizer
from keras_bert_flow.training.distillation import distill
from keras_bert_flow.training.loop.logs import read_log
from keras_bert_flow.training.pretraining.pretrain import pretrain
from tests.oracles.objective_records import write_objective_records
from tests.oracles.tiny_records import make_tiny_config
from tests.training.finetune_cases import LENGTH, finetune_case
from tests.training.test_objectives import SETTINGS

pytestmark = [pytest.mark.slow, pytest.mark.any_backend]

# Buckets that distances share, the convolution of v2, and all kinds of dropout.
SHAPE = {"family": "deberta-v2", "num_layers": 2, "hidden_dim": 32, "max_positions": LENGTH}
SHAPE |= {"dropout_rate": 0.1, "attention_dropout_rate": 0.1}
SHAPE |= {"options": {"position_buckets": 4, "convolution_width": 3}}


class Killed(BaseException):
    pass


def die_at(step):
    def report(line):
        if line["step"] == step:
            raise Killed  # before its checkpoint: the run goes on from the one before

    return report


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    return write_objective_records(tmp_path_factory.mktemp("deberta") / "records", "mlm")


@pytest.fixture(scope="module")
def teacher(records):
    config = make_tiny_config(model=SHAPE, masking="dynamic", **SETTINGS | {"learning_rate": 0.003})
    return pretrain(config, records, records.parent / "teacher", lambda line: None) / "model"


def test_killed_pretraining_ends_in_the_same_bits(records, tmp_path):
    settings = SETTINGS | {"total_steps": 14, "log_every_steps": 5, "checkpoint_every_steps": 5}
    config = make_tiny_config(model=SHAPE, masking="dynamic", **settings)
    whole = pretrain(config, records, tmp_path / "whole", lambda line: None)
    with pytest.raises(Killed):
        pretrain(config, records, tmp_path / "killed", die_at(10))
    steps = []
    killed = pretrain(config, records, tmp_path / "killed", lambda line: steps.append(line["step"]))
    assert steps == [10, 14]
    first, second = ((folder / "model" / "model.safetensors").read_bytes() for folder in (whole, killed))
    assert first == second


def test_killed_fine_tuning_ends_in_the_same_bits(teacher, tmp_path):
    options = {"tokenizer": read_tokenizer(teacher), "dropout_rate": 0.1, "seeds": (1, 2)}
    whole, _ = finetune_case(teacher, tmp_path / "whole", "classification", **options)

    def die(line):
        if line["run"].endswith("seed-2"):
            raise Killed

    with pytest.raises(Killed):
        finetune_case(teacher, tmp_path / "killed", "classification", report=die, **options)
    killed, _ = finetune_case(teacher, tmp_path / "killed", "classification", **options)
    for one, other in zip(whole, killed, strict=True):
        assert (
            one.keys()
            == other.keys()
            >= {"pooler.dense.weight", "deberta.encoder.rel_embeddings.weight", "classifier.weight"}
        )
        for name, value in one.items():
            np.testing.assert_array_equal(other[name], value)


def test_its_predictions_teach_another_family(records, teacher, tmp_path):
    shape = make_tiny_config(model={"max_positions": LENGTH}).model.model_dump() | {"hidden_dim": 32, "num_layers": 1}
    steps = {"batch_size": 16, "total_steps": 60, "warmup_steps": 4, "learning_rate": 0.003}
    student = ModelConfig(**shape | {"family": "distilbert"})
    config = make_tiny_config(model=SHAPE, masking="dynamic", **SETTINGS)
    settings = DistillationConfig(student=student, start="random", **steps)
    config = config.model_copy(update={"distillation": settings})
    output = distill(config, records, teacher, tmp_path / "student", lambda line: None)
    lines = read_log(output)
    assert lines[-1]["soft_loss"] < 0.9 * lines[0]["soft_loss"]
    assert kbf.MaskedLM.from_preset(output / "model").backbone.family == "distilbert"
