"""A checkpoint comes back whole or not at all: every state, every damage, a full disk."""

import json
import logging
import resource
from itertools import islice

import keras
import numpy as np
import pytest

from keras_bert_flow.data.pretraining import pretraining_dataset
from keras_bert_flow.data.pretraining_records import PretrainingRecords
from keras_bert_flow.training.optimizers.factory import adamw
from keras_bert_flow.training.precision import seed_everything
from keras_bert_flow.training.pretraining.pretrain import make_pretrainer
from keras_bert_flow.training.state import checkpoints as module
from keras_bert_flow.training.state.checkpoints import STATE_FILE, TRAIN_STATE_FILE, Checkpoints
from tests.oracles.tiny_records import make_tiny_config, write_tiny_records

IDENTITY = {"seed": 1, "model": {"hidden_dim": 16, "act": "gelu"}}


def make_model(seed=1, **shape):
    seed_everything(seed)
    model = make_pretrainer(make_tiny_config(shape).model, 50)
    model.compile(optimizer=adamw(0.01, 100, 2))
    model.optimizer.build(model.trainable_variables)
    return model


@pytest.fixture(scope="module")
def batches(tmp_path_factory):
    records = PretrainingRecords(write_tiny_records(tmp_path_factory.mktemp("checkpoints") / "records"))
    return list(islice(pretraining_dataset(records, 4), 8))


@pytest.fixture(scope="module")
def model(batches):
    return make_model()


@pytest.fixture
def saved(model, tmp_path):
    """Checkpoints of the steps 1, 2 and 3, whose states differ in one bias."""
    checkpoints = Checkpoints(tmp_path / "checkpoints", IDENTITY, keep=3)
    bias = model.get_layer("nsp").bias
    for step in (1, 2, 3):
        bias.assign(np.array([step, -step], "float32"))
        checkpoints.save(model, step, {"elapsed_seconds": step / 10})
    bias.assign(np.zeros(2, "float32"))
    return checkpoints


def bias_of(model):
    return keras.ops.convert_to_numpy(model.get_layer("nsp").bias.value).tolist()


def all_states(model):
    variables = [*model.trainable_variables, *model.non_trainable_variables, *model.optimizer.variables]
    return {variable.path: np.array(keras.ops.convert_to_numpy(variable.value)) for variable in variables}


def folder_of(tmp_path, step):
    return tmp_path / "checkpoints" / f"step-{step:08d}"


def test_round_trip_brings_every_state_back_and_training_goes_on_alike(batches, tmp_path):
    model, losses, states = make_model(), [], {}
    checkpoints = Checkpoints(tmp_path / "checkpoints", IDENTITY, keep=9)
    for step, (x, y, weights) in enumerate(batches):
        if step in (0, 5):
            checkpoints.save(model, step, {"elapsed_seconds": 0.5 + step})
            states[step] = all_states(model)
        losses.append(float(model.train_on_batch(x, y, sample_weight=weights, return_dict=True)["loss"]))
        model.reset_metrics()
    seeds = [path for path in states[5] if path.endswith("seed_generator_state")]
    assert len(seeds) == 4  # after the embeddings, on the attention, after either sublayer
    assert not any(np.array_equal(states[0][path], states[5][path]) for path in seeds)
    last = all_states(model)
    twin = make_model(seed=7)  # other weights and other dropout
    for step in (5, 0):
        assert Checkpoints(tmp_path / "checkpoints", IDENTITY).restore(twin) == (step, {"elapsed_seconds": 0.5 + step})
        np.testing.assert_equal(all_states(twin), states[step])
        again = []
        for x, y, weights in batches[step:]:
            again.append(float(twin.train_on_batch(x, y, sample_weight=weights, return_dict=True)["loss"]))
            twin.reset_metrics()
        assert again == losses[step:]
        np.testing.assert_equal(all_states(twin), last)
        for file in folder_of(tmp_path, step).iterdir():
            file.unlink()
        folder_of(tmp_path, step).rmdir()


def test_nothing_saved_starts_at_0(model, tmp_path):
    assert Checkpoints(tmp_path / "checkpoints", IDENTITY).restore(model) == (0, {})


def test_newest_is_restored(model, saved):
    assert saved.restore(model) == (3, {"elapsed_seconds": 0.3})
    assert bias_of(model) == [3, -3]


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
def test_damaged_newest_falls_back_to_the_one_before(model, saved, tmp_path, caplog, name, damage):
    damage(folder_of(tmp_path, 3) / name)
    with caplog.at_level(logging.WARNING):
        assert saved.restore(model) == (2, {"elapsed_seconds": 0.2})
    assert bias_of(model) == [2, -2]
    assert "step-00000003 is damaged" in caplog.text


def test_changed_step_is_damage(model, saved, tmp_path, caplog):
    """No byte of train_state.json is free: a step that is off by one would train on other batches."""
    path = folder_of(tmp_path, 3) / TRAIN_STATE_FILE
    path.write_text(path.read_text().replace('"step": 3', '"step": 7'))
    assert saved.restore(model)[0] == 2


def test_all_damaged_refuses(model, saved, tmp_path):
    for step, damage in ((1, cut), (2, flip), (3, empty)):
        damage(folder_of(tmp_path, step) / STATE_FILE)
    with pytest.raises(ValueError, match=r"one whole checkpoint.*all damaged\. Remove the folder to start again"):
        saved.restore(model)


@pytest.mark.parametrize("keep", [1, 2])
def test_damaged_is_replaced_and_takes_no_place(model, saved, tmp_path, keep):
    flip(folder_of(tmp_path, 3) / STATE_FILE)
    checkpoints = Checkpoints(tmp_path / "checkpoints", IDENTITY, keep)
    assert checkpoints.restore(model)[0] == 2
    checkpoints.save(model, 3, {})  # over the damaged one
    assert checkpoints.restore(model) == (3, {})
    flip(folder_of(tmp_path, 3) / STATE_FILE)
    if keep == 2:
        assert checkpoints.restore(model)[0] == 2
        checkpoints.save(model, 2, {"again": True})  # before the damaged one, which is then of no use
        assert [path.name for path in (tmp_path / "checkpoints").glob("step-*")] == ["step-00000002", "step-00000001"][
            :1
        ]
        assert checkpoints.restore(model) == (2, {"again": True})


def test_other_identity_refuses_and_says_what_changed(model, saved, tmp_path):
    other = {"seed": 1, "model": {"hidden_dim": 32, "act": "gelu"}, "backend": "jax"}
    message = r"another backend \(None, now jax\), model\.hidden_dim \(16, now 32\)\. Undo"
    with pytest.raises(ValueError, match=message):
        Checkpoints(tmp_path / "checkpoints", other).restore(model)
    assert bias_of(model) == [0, 0]


def test_identity_of_tuples_comes_back(model, tmp_path):
    identity = {"seeds": (1, 2), "rate": 1e-4}
    Checkpoints(tmp_path / "checkpoints", identity).save(model, 4, {})
    assert Checkpoints(tmp_path / "checkpoints", identity).restore(model) == (4, {})


def test_other_shapes_are_listed(saved, tmp_path):
    with pytest.raises(ValueError) as caught:
        saved.restore(make_model(hidden_dim=24, num_layers=2))
    message = str(caught.value)
    assert "step-00000003, which differs in" in message
    assert "model/token_embedding/embeddings (model (50, 24), checkpoint (50, 16))" in message
    assert "model/encoder_block_1/output/kernel (model (24, 24), checkpoint None)" in message


def test_prune_keeps_the_newest_and_removes_remains(model, tmp_path):
    folder = tmp_path / "checkpoints"
    (folder / ".1234.tmp").mkdir(parents=True)
    (folder / ".1234.tmp" / STATE_FILE).write_bytes(b"half")
    checkpoints = Checkpoints(folder, IDENTITY, keep=2)
    for step in (8, 9, 10, 100):
        checkpoints.save(model, step, {})
    assert sorted(path.name for path in folder.iterdir()) == ["step-00000010", "step-00000100"]


def test_weights_that_are_no_numbers_are_not_saved(model, saved, tmp_path):
    bias = model.get_layer("nsp").bias
    bias.assign(np.array([1.0, np.nan], "float32"))
    try:
        with pytest.raises(ValueError, match="must be numbers. Received: model/nsp/bias, not so at step 4"):
            saved.save(model, 4, {})
    finally:
        bias.assign(np.zeros(2, "float32"))
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir())[-1] == "step-00000003"


def test_damaged_takes_no_place_of_a_whole_one(model, saved, tmp_path):
    """The damaged third is newer than the whole second, and keeping two means two that can be gone on from."""
    flip(folder_of(tmp_path, 3) / STATE_FILE)
    checkpoints = Checkpoints(tmp_path / "checkpoints", IDENTITY, keep=2)
    assert checkpoints.restore(model)[0] == 2
    checkpoints.save(model, 4, {})
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-00000002", "step-00000004"]


def test_damage_is_told_once(model, saved, tmp_path, caplog):
    cut(folder_of(tmp_path, 3) / STATE_FILE)
    checkpoints = Checkpoints(tmp_path / "checkpoints", IDENTITY)
    assert checkpoints.find() == (2, {"elapsed_seconds": 0.2})
    assert checkpoints.restore(model)[0] == 2
    assert caplog.text.count("step-00000003 is damaged") == 1


def test_kill_while_replacing_leaves_the_replaced(model, tmp_path, monkeypatch):
    """The only one is saved again at its own step: there is no moment without a whole one."""

    class Killed(BaseException):
        pass

    def rename_and_die(path, target, rename=module.os.rename):
        rename(path, target)
        raise Killed

    checkpoints = Checkpoints(tmp_path / "checkpoints", IDENTITY, keep=1)
    checkpoints.save(model, 4, {"stretch": "broken off"})
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(module.os, "rename", rename_and_die)
        patch.setattr(module.shutil, "rmtree", lambda *_, **__: None)
        checkpoints.save(model, 4, {})
    assert Checkpoints(tmp_path / "checkpoints", IDENTITY).restore(model) == (4, {"stretch": "broken off"})
    checkpoints = Checkpoints(tmp_path / "checkpoints", IDENTITY, keep=1)
    checkpoints.save(model, 4, {"again": 1})
    assert checkpoints.restore(model) == (4, {"again": 1})
    checkpoints.save(model, 4, {"again": 2})
    assert checkpoints.restore(model) == (4, {"again": 2})
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000004"]


def test_order_is_that_of_the_steps_however_many_digits(model, tmp_path):
    checkpoints = Checkpoints(tmp_path / "checkpoints", IDENTITY, keep=2)
    for step in (99_999_999, 100_000_000):
        checkpoints.save(model, step, {})
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-100000000", "step-99999999"]
    assert checkpoints.restore(model)[0] == 100_000_000
    checkpoints.save(model, 100_000_001, {})
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-100000000", "step-100000001"]


def test_settings_that_changed_are_remembered_over_checkpoints(model, tmp_path, caplog):
    def open_with(total):
        checkpoints = Checkpoints(tmp_path / "checkpoints", IDENTITY, settings={"total": total})
        checkpoints.find()
        return checkpoints

    open_with(24).save(model, 7, {})
    checkpoints = open_with(30)
    assert "Going on from step 7 with another total (24, now 30)" in caplog.text
    checkpoints.save(model, 14, {})
    assert open_with(30).history == checkpoints.history == [[7, {"total": 24}]]
    assert open_with(24).history == [[7, {"total": 24}], [14, {"total": 30}]]
    assert open_with(30).list_earlier(("total",), 30) == [[7, {"total": 24}]]


def test_place_that_cannot_be_written_is_one_line(model, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        OSError, match=r"written whole\. Received: .*file/checkpoints, at step 4: not a directory\. Mend"
    ):
        Checkpoints(tmp_path / "file" / "checkpoints", IDENTITY).save(model, 4, {})


def test_full_disk_leaves_the_previous_whole(model, saved, tmp_path):
    """A limit on file sizes stands in for the full disk: the same write fails, half-way."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(OSError, match="must be written whole.* at step 4: .*File too large.* as they were"):
            saved.save(model, 4, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == [f"step-0000000{n}" for n in (1, 2, 3)]
    assert saved.restore(model)[0] == 3


@pytest.mark.parametrize("moment", ["sync_folder", "file_digest", "_digest"])
def test_kill_while_saving_leaves_the_previous_whole(model, saved, tmp_path, monkeypatch, moment):
    class Killed(BaseException):
        pass

    def die(*_):
        raise Killed

    monkeypatch.setattr(module, moment, die)
    monkeypatch.setattr(module.shutil, "rmtree", lambda *_, **__: None)  # the dead clean nothing up
    with pytest.raises(Killed):
        saved.save(model, 4, {})
    monkeypatch.undo()
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names[0].endswith(".tmp") and names[1:] == [f"step-0000000{n}" for n in (1, 2, 3)]
    assert saved.restore(model)[0] == 3
    assert json.loads((folder_of(tmp_path, 3) / TRAIN_STATE_FILE).read_text())["step"] == 3
