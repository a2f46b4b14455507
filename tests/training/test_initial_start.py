"""The model before the first step of pre-training: published where it has embeddings from counts, and fine-tuned."""

import numpy as np
import pytest

import keras_bert_flow as kbf
from keras_bert_flow.backends.runtime import seed_everything
from keras_bert_flow.backends.values import read_variable
from keras_bert_flow.data.pretraining_records import PretrainingRecords
from keras_bert_flow.files.documents import read_json_object
from keras_bert_flow.training.finetuning.finetune import finetune
from keras_bert_flow.training.pretraining.pretrain import pretrain
from keras_bert_flow.training.pretraining.pretrainers import make_pretrainer, set_initial_tokens
from tests.oracles.tiny_records import make_tiny_config
from tests.training.separable_task import make_task_config, weights_of, write_table

pytestmark = pytest.mark.any_backend
SETTINGS = {"epochs": 2, "seeds": (1,), "random_max_epochs": 3, "random_patience_epochs": 3}


def ignore(line):
    pass


@pytest.fixture(scope="module")
def trained(records, tmp_path_factory):
    """A result of pre-training that began with embeddings from counts, and the tables of a task beside it."""
    folder = tmp_path_factory.mktemp("initial")
    pretrain(make_tiny_config(token_embeddings="co_occurrence"), records, folder / "pretrained", ignore)
    write_table(folder / "train.tsv", 40, seed=0)
    write_table(folder / "dev.tsv", 20, seed=1)
    return folder


def test_model_before_the_first_step_is_published(trained, records):
    config = make_tiny_config(token_embeddings="co_occurrence")
    seed_everything(config.seed)
    expected = make_pretrainer(config.model, 50)
    set_initial_tokens(expected, PretrainingRecords(records), config.pretraining, config.seed)
    found = kbf.Backbone.from_preset(trained / "pretrained" / "initial")
    ended = kbf.Backbone.from_preset(trained / "pretrained" / "model")
    for name in ("initial", "model"):
        assert (trained / "pretrained" / name / "vocab.txt").read_bytes() == (records / "vocab.txt").read_bytes()
    for ours, theirs, last in zip(found.weights, expected.backbone.weights, ended.weights, strict=True):
        np.testing.assert_array_equal(read_variable(ours), read_variable(theirs))
        assert not np.array_equal(read_variable(ours), read_variable(last))


def test_random_embeddings_are_not_published(records, tmp_path):
    pretrain(make_tiny_config(total_steps=3), records, tmp_path / "out", ignore)
    assert not (tmp_path / "out" / "initial").exists()


@pytest.mark.slow
def test_it_is_fine_tuned_beside_the_others(trained, tmp_path):
    config = make_task_config(trained, **SETTINGS)
    finetune(config, trained / "pretrained" / "model", tmp_path / "out", ignore)
    runs = {path.parts[-3]: read_json_object(path) for path in (tmp_path / "out").glob("*/seed-1/run.json")}
    assert {name: run["start"] for name, run in runs.items()} == {
        name: name for name in ("pretrained", "random", "initial")
    }
    # As long and in the way of random weights, but from its own: like a fine-tuning of that model alone.
    alone = make_task_config(trained, **SETTINGS | {"epochs": 3, "publish": "best", "compare_random": False})
    finetune(alone, trained / "pretrained" / "initial", tmp_path / "alone", ignore)
    assert weights_of(tmp_path / "out" / "initial" / "seed-1") == weights_of(
        tmp_path / "alone" / "pretrained" / "seed-1"
    )
    assert weights_of(tmp_path / "out" / "initial" / "seed-1") != weights_of(tmp_path / "out" / "random" / "seed-1")


@pytest.mark.slow
def test_it_is_left_out_where_it_is_not_asked_for(trained, tmp_path):
    config = make_task_config(trained, **SETTINGS, compare_initial=False)
    finetune(config, trained / "pretrained" / "model", tmp_path / "out", ignore)
    assert sorted(path.name for path in (tmp_path / "out").iterdir() if path.is_dir()) == ["pretrained", "random"]
