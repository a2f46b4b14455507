"""A save that is refused, finds no room or is killed leaves the checkpoints before it whole."""

import json
import resource

import numpy as np
import pytest

from keras_bert_flow.training.loop import checkpoints as module
from keras_bert_flow.training.loop.checkpoints import TRAIN_STATE_FILE, Checkpoints
from tests.training.checkpoint_cases import IDENTITY, folder_of


def test_weights_that_are_no_numbers_are_not_saved(pretrainer, saved, tmp_path):
    bias = pretrainer.get_layer("nsp").bias
    bias.assign(np.array([1.0, np.nan], "float32"))
    try:
        with pytest.raises(ValueError, match="must be numbers. Received: model/nsp/bias, not so at step 4"):
            saved.save(pretrainer, 4, {})
    finally:
        bias.assign(np.zeros(2, "float32"))
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir())[-1] == "step-00000003"


def test_kill_while_replacing_leaves_the_replaced(pretrainer, tmp_path, monkeypatch):
    """The only one is saved again at its own step: there is no moment without a whole one."""

    class Killed(BaseException):
        pass

    def rename_and_die(path, target, rename=module.os.rename):
        rename(path, target)
        raise Killed

    checkpoints = Checkpoints(tmp_path / "checkpoints", IDENTITY, keep=1)
    checkpoints.save(pretrainer, 4, {"interval": "broken off"})
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(module.os, "rename", rename_and_die)
        patch.setattr(module.shutil, "rmtree", lambda *_, **__: None)
        checkpoints.save(pretrainer, 4, {})
    assert Checkpoints(tmp_path / "checkpoints", IDENTITY).restore(pretrainer) == (4, {"interval": "broken off"})
    checkpoints = Checkpoints(tmp_path / "checkpoints", IDENTITY, keep=1)
    checkpoints.save(pretrainer, 4, {"again": 1})
    assert checkpoints.restore(pretrainer) == (4, {"again": 1})
    checkpoints.save(pretrainer, 4, {"again": 2})
    assert checkpoints.restore(pretrainer) == (4, {"again": 2})
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000004"]


def test_place_that_cannot_be_written_is_one_line(pretrainer, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        OSError, match=r"written whole\. Received: .*file/checkpoints, at step 4: not a directory\. Fix"
    ):
        Checkpoints(tmp_path / "file" / "checkpoints", IDENTITY).save(pretrainer, 4, {})


def test_full_disk_leaves_the_previous_whole(pretrainer, saved, tmp_path):
    """A limit on file sizes stands in for the full disk: the same write fails, half-way."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(OSError, match="must be written whole.* at step 4: .*File too large.* are unchanged"):
            saved.save(pretrainer, 4, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == [f"step-0000000{n}" for n in (1, 2, 3)]
    assert saved.restore(pretrainer)[0] == 3


@pytest.mark.parametrize("moment", ["sync_folder", "file_digest", "_digest"])
def test_kill_while_saving_leaves_the_previous_whole(pretrainer, saved, tmp_path, monkeypatch, moment):
    class Killed(BaseException):
        pass

    def die(*_):
        raise Killed

    monkeypatch.setattr(module, moment, die)
    monkeypatch.setattr(module.shutil, "rmtree", lambda *_, **__: None)  # the dead clean nothing up
    with pytest.raises(Killed):
        saved.save(pretrainer, 4, {})
    monkeypatch.undo()
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names[0].endswith(".tmp") and names[1:] == [f"step-0000000{n}" for n in (1, 2, 3)]
    assert saved.restore(pretrainer)[0] == 3
    assert json.loads((folder_of(tmp_path, 3) / TRAIN_STATE_FILE).read_text())["step"] == 3
