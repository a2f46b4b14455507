"""Tables, models and records that change while a run reads them leave no result, and nothing to resume from."""

import os
import shutil

import pytest

from keras_bert_flow.data.model_tokenizer import read_tokenizer
from keras_bert_flow.training.finetuning.finetune import finetune
from keras_bert_flow.training.finetuning.task_data import read_task_data
from keras_bert_flow.training.pretraining.pretrain import pretrain
from tests.oracles.tiny_records import make_tiny_config
from tests.training.pretrain_child import SETTINGS
from tests.training.separable_task import make_task_config

SHORT = {"epochs": 1, "seeds": (1,), "compare_random": False}


def ignore(line):
    pass


def swap_and_undo(path):
    """Replace a file by a copy of itself and put it back; others may have read other bytes."""
    os.rename(path, kept := path.with_name("kept"))
    shutil.copyfile(kept, path)
    os.replace(kept, path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dev.tsv", "model/model.safetensors"])
@pytest.mark.any_backend
@pytest.mark.first_form
def test_finetuning_on_a_replaced_input_keeps_nothing(place, tmp_path, name):
    folder = tmp_path / "place"
    shutil.copytree(place, folder)
    config, seen = make_task_config(folder, **SHORT), []

    def swap(line):
        if not seen:
            swap_and_undo(folder / name)
        seen.append(line["step"])

    with pytest.raises(ValueError, match=rf"An input must not change .*{name}, changed since"):
        finetune(config, folder / "model", tmp_path / "out", swap)
    assert not (tmp_path / "out").exists()
    assert not [*tmp_path.glob(".out.work/**/step-*"), *tmp_path.glob(".out.work/**/run.json")]


@pytest.mark.any_backend
def test_table_that_changes_after_it_was_read_is_refused(place, tmp_path):
    """`kbf finetune` reads the tables first, and digests them once Keras is loaded."""
    folder = tmp_path / "place"
    shutil.copytree(place, folder)
    config = make_task_config(folder, **SHORT)
    data = read_task_data(config, read_tokenizer(folder / "model"))
    table = folder / "train.tsv"
    table.write_text(table.read_text().replace("\tno", "\tyes", 3))
    with pytest.raises(ValueError, match="train.tsv, changed since"):
        finetune(config, folder / "model", tmp_path / "out", ignore, data=data)
    assert not (tmp_path / "out").exists()


@pytest.mark.any_backend
def test_pretraining_on_replaced_records_goes_on_from_the_checkpoint_before(records, tmp_path):
    """The checkpoints of the steps before the change hold what the key names; none is written after it."""
    shutil.copytree(records, tmp_path / "records")
    config = make_tiny_config(**SETTINGS)
    seen = []

    def swap(line):
        seen.append(line["step"])
        if line["step"] == 9:
            swap_and_undo(next((tmp_path / "records").glob("train-*.tfrecord")))

    with pytest.raises(ValueError, match=r"An input must not change .*\.tfrecord, changed since"):
        pretrain(config, tmp_path / "records", tmp_path / "out", swap)
    assert not (tmp_path / "out").exists()
    steps = [int(path.name[-8:]) for path in tmp_path.glob(".out.work/checkpoints/step-*")]
    assert steps and max(steps) < 9 <= max(seen)
    resumed = []
    pretrain(config, tmp_path / "records", tmp_path / "out", lambda line: resumed.append(line["step"]))
    assert resumed[0] > max(steps)
