"""A damaged checkpoint is told of once and gives way to the newest whole one, whose place it does not take."""

import logging

import pytest

from keras_bert_flow.training.loop.checkpoints import STATE_FILE, TRAIN_STATE_FILE, Checkpoints
from tests.training.checkpoint_cases import IDENTITY, bias_of, folder_of


def cut(path):
    path.write_bytes(path.read_bytes()[:-7])


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) * 2 // 3] ^= 1
    path.write_bytes(content)


def empty(path):
    path.write_bytes(b"")


def remove(path):
    path.unlink()


def write_list(path):
    path.write_text("[1]")


@pytest.mark.parametrize("name", [STATE_FILE, TRAIN_STATE_FILE])
@pytest.mark.parametrize("damage", [cut, flip, empty, remove, write_list])
def test_damaged_newest_falls_back_to_the_one_before(pretrainer, saved, tmp_path, caplog, name, damage):
    damage(folder_of(tmp_path, 3) / name)
    with caplog.at_level(logging.WARNING):
        assert saved.restore(pretrainer) == (2, {"elapsed_seconds": 0.2})
    assert bias_of(pretrainer) == [2, -2]
    assert "step-00000003 is damaged" in caplog.text


def test_changed_step_is_damage(pretrainer, saved, tmp_path, caplog):
    """No byte of train_state.json is free: a step that is off by one would train on other batches."""
    path = folder_of(tmp_path, 3) / TRAIN_STATE_FILE
    path.write_text(path.read_text().replace('"step": 3', '"step": 7'))
    assert saved.restore(pretrainer)[0] == 2


def test_all_damaged_refuses(pretrainer, saved, tmp_path):
    for step, damage in ((1, cut), (2, flip), (3, empty)):
        damage(folder_of(tmp_path, step) / STATE_FILE)
    with pytest.raises(ValueError, match=r"one whole checkpoint.*all damaged\. Remove the folder to start again"):
        saved.restore(pretrainer)


@pytest.mark.parametrize("keep", [1, 2])
def test_damaged_is_replaced_and_takes_no_place(pretrainer, saved, tmp_path, keep):
    flip(folder_of(tmp_path, 3) / STATE_FILE)
    checkpoints = Checkpoints(tmp_path / "checkpoints", IDENTITY, keep)
    assert checkpoints.restore(pretrainer)[0] == 2
    checkpoints.save(pretrainer, 3, {})  # over the damaged one
    assert checkpoints.restore(pretrainer) == (3, {})
    flip(folder_of(tmp_path, 3) / STATE_FILE)
    if keep == 2:
        assert checkpoints.restore(pretrainer)[0] == 2
        checkpoints.save(pretrainer, 2, {"again": True})  # before the damaged one, which is then of no use
        assert [path.name for path in (tmp_path / "checkpoints").glob("step-*")] == ["step-00000002", "step-00000001"][
            :1
        ]
        assert checkpoints.restore(pretrainer) == (2, {"again": True})


def test_damaged_takes_no_place_of_a_whole_one(pretrainer, saved, tmp_path):
    """The damaged third is newer than the whole second, and keeping two means two that can be gone on from."""
    flip(folder_of(tmp_path, 3) / STATE_FILE)
    checkpoints = Checkpoints(tmp_path / "checkpoints", IDENTITY, keep=2)
    assert checkpoints.restore(pretrainer)[0] == 2
    checkpoints.save(pretrainer, 4, {})
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-00000002", "step-00000004"]


def test_damage_is_told_once(pretrainer, saved, tmp_path, caplog):
    cut(folder_of(tmp_path, 3) / STATE_FILE)
    checkpoints = Checkpoints(tmp_path / "checkpoints", IDENTITY)
    assert checkpoints.find() == (2, {"elapsed_seconds": 0.2})
    assert checkpoints.restore(pretrainer)[0] == 2
    assert caplog.text.count("step-00000003 is damaged") == 1
