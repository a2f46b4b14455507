"""Parts of a fine-tuning step: as many as make it cheapest, unless they are given or gain nothing."""

import os

import numpy as np
import pytest

from keras_bert_flow.backends.runtime import is_on_processor
from keras_bert_flow.config.loading import make_config
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.tasks.core.task import Features
from keras_bert_flow.training.finetuning import task_runs
from keras_bert_flow.training.finetuning.task_runs import choose_parts

pytestmark = pytest.mark.any_backend
LONG_TAIL = np.where(np.arange(640) % 16 < 14, 20, 120)  # a random batch of 32 is as wide as 120


@pytest.fixture(autouse=True)
def compile_shapes(monkeypatch):
    monkeypatch.setattr(task_runs, "COMPILES_SHAPES", True)
    monkeypatch.setattr(task_runs, "is_on_processor", lambda: True)


def choose(lengths=LONG_TAIL, task=(), **finetuning):
    sequences = [np.zeros(length, np.int32) for length in lengths]
    rows = np.arange(len(lengths))
    features = Features(sequences, np.asarray(lengths), rows, {"logits": np.zeros(len(lengths), np.int32)})
    task = {"name": "t", "train": "t", "dev": "t", **dict(task)}
    return choose_parts(make_config(PipelineConfig, {"task": task, "finetuning": finetuning}, "task"), features)


def test_parts_are_those_of_the_cheapest_step():
    # Positions of 32 rows, of which about 4 have 120: in one part 3,840; in two 16 × (24 + 120); in four about
    # 8 × (3 × 24 + 120), each with a cost of 170 besides.
    assert choose() == 4
    assert choose(np.full(640, 40)) == 1  # no padding to be saved
    assert choose(batch_size=4) == 1
    assert choose(batch_size=18, epochs=1) == 2  # 18 does not split into 4


def test_parts_that_are_given_are_kept():
    assert choose(accumulate_batches=1) == 1
    assert choose(np.full(640, 40), accumulate_batches=8) == 8


def test_one_part_where_parts_gain_nothing(monkeypatch):
    monkeypatch.setattr(task_runs, "PART_COST", -10_000)  # more parts would always be cheaper
    assert choose(group_by_length=True) == 1
    assert choose(task={"kind": "sentence_embedding", "objective": "contrastive"}) == 1
    assert choose(task={"kind": "sentence_embedding", "objective": "cosine"}) == 4
    with monkeypatch.context() as patch:
        patch.setattr(task_runs, "is_on_processor", lambda: False)
        assert choose() == 1
    monkeypatch.setattr(task_runs, "COMPILES_SHAPES", False)
    assert choose() == 1


@pytest.mark.skipif(bool(os.environ.get("CUDA_VISIBLE_DEVICES")), reason="a GPU was asked for")
def test_processor_is_found():
    assert is_on_processor()
