"""What a configuration can say of a task is what the task takes."""

from dataclasses import fields
from pathlib import Path

import pytest

from keras_bert_flow.config.finetuning import POOLED, TASKS
from keras_bert_flow.config.loading import load_config
from keras_bert_flow.tasks.baselines import linear_head, word_baseline
from keras_bert_flow.tasks.registry import KINDS, make_task

CONFIGS = Path(__file__).parents[2] / "configs" / "tasks"
COMMON = {"name", "train", "dev"}


def test_every_kind_has_settings():
    assert set(TASKS) == set(KINDS)


def test_every_kind_that_is_pooled_has_its_baselines():
    with_words = {kind for kind in KINDS if KINDS.find(kind).word_baseline}
    assert set(POOLED) == with_words == {*linear_head.FITS} == {*word_baseline.FITS} == {*word_baseline.STRENGTHS}


@pytest.mark.parametrize("kind", TASKS)
def test_settings_are_the_fields_of_the_task(kind):
    settings, task = TASKS[kind](), make_task(kind)
    given = {**settings.arguments}
    assert given.pop("kind") == kind
    defaults = {field.name: getattr(task, field.name) for field in fields(task)}
    # Labels are learnt where a configuration says nothing of them, and multiple choice has one metric.
    assert defaults.keys() - given.keys() <= {"labels", "main_metric"}
    assert given == {name: defaults[name] for name in given}
    assert make_task(**settings.arguments) == task


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_task_can_be_made(path):
    settings = load_config(path).task
    assert make_task(**settings.arguments).kind == settings.kind
