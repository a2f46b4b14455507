"""The way from a learning rate in YAML to the optimizer is short, and none of it only forwards."""

import traceback
from pathlib import Path

import keras
import pytest
import yaml

import keras_bert_flow
from keras_bert_flow.config.loading import load_config
from keras_bert_flow.conversion.model_directory import save_model_directory
from keras_bert_flow.training.distillation import distill
from keras_bert_flow.training.finetuning.finetune import finetune
from keras_bert_flow.training.optimizers.schedules import WarmupDecay
from keras_bert_flow.training.pretraining.pretrain import pretrain
from keras_bert_flow.training.pretraining.pretrainers import make_pretrainer
from tests.oracles.tiny_records import VOCABULARY_SIZE, make_tiny_config, write_tiny_records
from tests.training.separable_task import make_task_config

PACKAGE = Path(keras_bert_flow.__file__).parent
LONGEST = 6
RATE = 0.0123


class Constructed(Exception):
    """The optimizer with the learning rate of the configuration is constructed."""


@pytest.fixture
def called(monkeypatch):
    """Return a list that gets the functions of this package on the stack where the optimizer is constructed."""
    names = []

    def note_and_end(self, learning_rate, **options):
        stack = [frame for frame in traceback.extract_stack() if Path(frame.filename).is_relative_to(PACKAGE)]
        names.extend(frame.name for frame in stack if frame.name != "__init__")  # that of the optimizer itself
        assert isinstance(learning_rate, WarmupDecay) and learning_rate.peak == RATE
        raise Constructed

    monkeypatch.setattr(keras.optimizers.Optimizer, "__init__", note_and_end)
    return names


@pytest.fixture
def records(tmp_path):
    return write_tiny_records(tmp_path / "records")


def load_settings(folder, **sections):
    """Return a configuration that was a YAML file."""
    values = make_tiny_config(learning_rate=RATE).model_dump(mode="json", exclude_unset=True)
    (folder / "tiny.yaml").write_text(yaml.safe_dump(values | sections))
    return load_config(folder / "tiny.yaml")


@pytest.mark.parametrize("optimizer", ["adamw", "bert_adam"])
def test_pretraining_reaches_the_optimizer_in_few_calls(tmp_path, records, called, optimizer):
    config = load_settings(tmp_path)
    settings = config.pretraining.model_copy(update={"optimizer": optimizer})
    with pytest.raises(Constructed):
        pretrain(config.model_copy(update={"pretraining": settings}), records, tmp_path / "out")
    assert called[:2] == ["pretrain", "compile_pretrainer"]
    assert len(called) <= LONGEST, called


def test_distillation_reaches_the_optimizer_in_few_calls(tmp_path, records, called):
    config = load_settings(tmp_path)
    shape = config.model.model_dump(mode="json")
    config = load_settings(tmp_path, distillation={"student": shape, "learning_rate": RATE, "total_steps": 9})
    save_model_directory(make_pretrainer(config.model, VOCABULARY_SIZE), tmp_path / "model", records / "vocab.txt")
    with pytest.raises(Constructed):
        distill(config, records, tmp_path / "model", tmp_path / "out")
    assert called[:2] == ["distill", "compile_pretrainer"]
    assert len(called) <= LONGEST, called


@pytest.mark.any_backend
def test_finetuning_reaches_the_optimizer_in_few_calls(place, tmp_path, called):
    config = make_task_config(place, learning_rate=RATE)
    with pytest.raises(Constructed):
        finetune(config, place / "model", tmp_path / "out")
    assert called[:2] == ["finetune", "finish"]
    assert len(called) <= LONGEST, called
