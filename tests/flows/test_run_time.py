"""A run with `minutes` tells pre-training, distillation and fine-tuning how long they may take."""

import time
from pathlib import Path

import pytest

from flows.stages import LEAST_STAGE_SECONDS, StageRun, in_time
from keras_bert_flow.config.loading import make_config
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.console.interrupts import RUN_BEGAN, STAGE_SECONDS, stage_seconds
from keras_bert_flow.results.stages import STAGES

OWN = {"pretraining": {"minutes": 4.0}, "finetuning": {"minutes": 2.0}}


def told(monkeypatch, spent, **values):
    """Return stage → the seconds that it is told, in a run that began `spent` seconds ago."""
    monkeypatch.setenv(RUN_BEGAN, f"{time.time() - spent:.0f}")
    seen = {}

    def make(stage):
        seen[stage.name] = stage.environment.get(STAGE_SECONDS)
        return Path(stage.folder)

    limited = in_time(make_config(PipelineConfig, OWN | values, "test"), make)
    for name in STAGES:
        limited(StageRun(name, "0" * 16, Path(name), (), {"KERAS_BACKEND": "torch"}))
    return {name: float(seconds) for name, seconds in seen.items() if seconds is not None}


@pytest.mark.parametrize("spent", [0, 60, 180])
def test_what_is_left_is_shared_as_the_stages_share_it(monkeypatch, spent):
    found = told(monkeypatch, spent, minutes=10)
    left = 600 - spent - 60  # for the evaluation
    assert found == {
        "pretraining": pytest.approx(left * 4 / 6, abs=2),
        "finetuning": pytest.approx(left, abs=2),  # which begins later, with less
    }


def test_distillation_has_the_minutes_of_pretraining(monkeypatch):
    found = told(monkeypatch, 0, minutes=11, distillation={})
    assert found == {
        "pretraining": pytest.approx(600 * 4 / 10, abs=2),
        "distillation": pytest.approx(600 * 4 / 6, abs=2),
        "finetuning": pytest.approx(600, abs=2),
    }
    found = told(monkeypatch, 0, minutes=11, distillation={"teacher": "given"}, vocabulary={"file": "vocab.txt"})
    assert found == {"distillation": pytest.approx(600 * 4 / 6, abs=2), "finetuning": pytest.approx(600, abs=2)}


def test_a_run_that_is_late_trains_a_little(monkeypatch):
    assert told(monkeypatch, 700, minutes=10) == {
        "pretraining": LEAST_STAGE_SECONDS,
        "finetuning": LEAST_STAGE_SECONDS,
    }


def test_stages_without_minutes_and_runs_without_are_told_nothing(monkeypatch):
    assert told(monkeypatch, 60) == {}
    assert told(monkeypatch, 60, minutes=10, pretraining={}) == {"finetuning": pytest.approx(480, abs=2)}


def test_a_stage_takes_the_shorter_of_its_own_minutes_and_those_of_the_run(monkeypatch):
    monkeypatch.delenv(STAGE_SECONDS, raising=False)
    assert stage_seconds(2.0) == 120
    monkeypatch.setenv(STAGE_SECONDS, "30")
    assert (stage_seconds(2.0), stage_seconds(0.25)) == (30, 15)
