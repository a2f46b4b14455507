"""Which values a search draws, and the spaces that it refuses."""

import optuna
import pytest

from keras_bert_flow.config.loading import load_config, make_config
from keras_bert_flow.config.pipeline import TuningConfig
from keras_bert_flow.tuning import (
    check_space,
    draw,
    read_dimension,
    read_params,
    read_tuning,
    write_overrides,
)


def make_tuning(**space):
    return make_config(TuningConfig, {"space": {name.replace("__", "."): given for name, given in space.items()}}, "x")


@pytest.mark.parametrize(
    ("option", "dimension"),
    [
        ("a.b=1e-5..1e-3:log", {"low": 1e-5, "high": 1e-3, "log": True}),
        ("a.b=1..4", {"low": 1, "high": 4, "log": False}),
        ("a.b=-0.5..0.5", {"low": -0.5, "high": 0.5, "log": False}),
        ("a.b=adamw,lamb", {"choices": ["adamw", "lamb"]}),
        ("a.b=16,32,null,true", {"choices": [16, 32, None, True]}),
        ("a.b=[1,2],[3]", {"choices": [[1, 2], [3]]}),
    ],
)
def test_option_is_read(option, dimension):
    assert read_dimension(option) == ("a.b", dimension)


@pytest.mark.parametrize("option", ["a.b", "a.b=", "=1..2", "a.b=1..2:lin", "a.b=[1", "a.b=[1..2"])
def test_option_that_is_no_space_is_refused(option):
    with pytest.raises(ValueError, match="--space must read"):
        read_dimension(option)


def test_options_replace_and_add_to_the_section():
    section = make_tuning(model__num_layers={"low": 1, "high": 2}, finetuning__epochs={"low": 1, "high": 2})
    read = read_tuning(section, ["finetuning.epochs=3..4", "pretraining.optimizer=adamw,lamb"], 7)
    assert read.trials == 7 and [*read.space] == ["model.num_layers", "finetuning.epochs", "pretraining.optimizer"]
    assert read.space["finetuning.epochs"].low == 3 and section.space["finetuning.epochs"].low == 1


def test_values_are_of_the_space_and_come_back_from_the_study():
    tuning = make_tuning(
        finetuning__learning_rate={"low": "1e-5", "high": "1e-3", "log": True},
        finetuning__epochs={"low": 1, "high": 4},
        finetuning__lora_targets={"choices": [["query"], ["query", "value"]]},
        finetuning__frozen_layers={"choices": [0, "all", None]},
    )
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    for _ in range(50):
        trial = study.ask()
        values = draw(trial, tuning.space)
        assert 1e-5 <= values["finetuning.learning_rate"] <= 1e-3
        assert values["finetuning.epochs"] in (1, 2, 3, 4) and type(values["finetuning.epochs"]) is int
        config = load_config(None, write_overrides(values)).finetuning
        assert {name: getattr(config, name.split(".")[1]) for name in values} == values | {
            "finetuning.lora_targets": tuple(values["finetuning.lora_targets"])
        }
        assert read_params(study.trials[-1].params, tuning.space) == values
        study.tell(trial, 1.0)
    assert {trial.params["finetuning.epochs"] for trial in study.trials} == {1, 2, 3, 4}


@pytest.mark.parametrize(
    ("name", "dimension", "said"),
    [
        ("finetuning.lerning_rate", {"low": 1, "high": 2}, "no known setting. Valid names: batch_size"),
        ("finetuning.epochs", {"low": 0, "high": 2}, "greater than or equal to 1. Received: 0"),
        ("finetuning.dropout_rate", {"low": 0.5, "high": 1}, "less than 1. Received: 1"),
        ("finetuning.epochs", {"low": 1.0, "high": 4.0}, "valid integer"),
        ("pretraining.optimizer", {"choices": ["adamw", "sgd"]}, "Received: 'sgd'"),
        ("pretraining.warmup_steps", {"low": 1, "high": 2_000_000}, "`warmup_steps` must be at most"),
        ("runs", {"choices": ["a"]}, "Received: runs, with dev_score"),
        ("finetuning.grid", {"choices": [None]}, "Received: finetuning.grid, with dev_score"),
    ],
)
def test_value_that_the_configuration_refuses_is_refused(name, dimension, said):
    tuning = make_config(TuningConfig, {"space": {name: dimension}}, "x")
    with pytest.raises(ValueError, match=r"(?s).*") as refused:
        check_space(tuning, "dev_score", lambda overrides: load_config(None, overrides))
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_setting_that_is_not_measured_is_refused():
    tuning = make_tuning(finetuning__epochs={"low": 1, "high": 2})
    check_space(tuning, "dev_score", lambda overrides: load_config(None, overrides))
    with pytest.raises(ValueError, match=r"Received: finetuning\.epochs, with held_out_loss"):
        check_space(tuning, "held_out_loss", lambda overrides: load_config(None, overrides))


@pytest.mark.parametrize(
    "dimension",
    [
        {"low": 2, "high": 1},
        {"low": 1, "high": 1},
        {"low": 0, "high": 1, "log": True},
        {"low": 1},
        {},
        {"choices": []},
        {"choices": [1, 1]},
        {"choices": [1], "low": 1, "high": 2},
        {"low": 1, "hgh": 2},
    ],
)
def test_dimension_that_is_none_is_refused_in_one_line(dimension):
    with pytest.raises(ValueError, match=r"space\.finetuning\.epochs") as refused:
        make_tuning(finetuning__epochs=dimension)
    assert "\n" not in str(refused.value)


def test_search_without_a_space_is_refused():
    with pytest.raises(ValueError, match="Received: neither `tuning.space` nor --space"):
        read_tuning(None, [], None)
