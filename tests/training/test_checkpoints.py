"""A checkpoint brings every state back, to the model and the settings that it was made with; the newest are kept."""

from itertools import islice

import keras
import numpy as np
import pytest

from keras_bert_flow.data.pretraining import pretraining_dataset
from keras_bert_flow.data.pretraining_records import PretrainingRecords
from keras_bert_flow.training.loop.checkpoints import STATE_FILE, Checkpoints
from keras_bert_flow.training.loop.identity import list_earlier
from tests.oracles.tiny_records import write_tiny_records
from tests.training.checkpoint_cases import IDENTITY, bias_of, folder_of, make_model


@pytest.fixture(scope="module")
def batches(tmp_path_factory):
    records = PretrainingRecords(write_tiny_records(tmp_path_factory.mktemp("checkpoints") / "records"))
    return list(islice(pretraining_dataset(records, 4), 8))


def all_states(model):
    variables = [*model.trainable_variables, *model.non_trainable_variables, *model.optimizer.variables]
    return {variable.path: np.array(keras.ops.convert_to_numpy(variable.value)) for variable in variables}


@pytest.mark.slow_on_tensorflow
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


def test_nothing_saved_starts_at_0(pretrainer, tmp_path):
    assert Checkpoints(tmp_path / "checkpoints", IDENTITY).restore(pretrainer) == (0, {})


def test_newest_is_restored(pretrainer, saved):
    assert saved.restore(pretrainer) == (3, {"elapsed_seconds": 0.3})
    assert bias_of(pretrainer) == [3, -3]


def test_other_identity_refuses_and_says_what_changed(pretrainer, saved, tmp_path):
    other = {"seed": 1, "model": {"hidden_dim": 32, "act": "gelu"}, "backend": "jax"}
    message = r"another backend \(None, now jax\), model\.hidden_dim \(16, now 32\)\. Undo"
    with pytest.raises(ValueError, match=message):
        Checkpoints(tmp_path / "checkpoints", other).restore(pretrainer)
    assert bias_of(pretrainer) == [0, 0]


def test_identity_of_tuples_comes_back(pretrainer, tmp_path):
    identity = {"seeds": (1, 2), "rate": 1e-4}
    Checkpoints(tmp_path / "checkpoints", identity).save(pretrainer, 4, {})
    assert Checkpoints(tmp_path / "checkpoints", identity).restore(pretrainer) == (4, {})


def test_other_shapes_are_listed(saved, tmp_path):
    with pytest.raises(ValueError) as caught:
        saved.restore(make_model(hidden_dim=24, num_layers=2))
    message = str(caught.value)
    assert "step-00000003, which differs in" in message
    assert "model/token_embedding/embeddings (model (50, 24), checkpoint (50, 16))" in message
    assert "model/encoder_block_1/output/kernel (model (24, 24), checkpoint None)" in message


def test_prune_keeps_the_newest_and_removes_remains(pretrainer, tmp_path):
    folder = tmp_path / "checkpoints"
    (folder / ".1234.tmp").mkdir(parents=True)
    (folder / ".1234.tmp" / STATE_FILE).write_bytes(b"half")
    checkpoints = Checkpoints(folder, IDENTITY, keep=2)
    for step in (8, 9, 10, 100):
        checkpoints.save(pretrainer, step, {})
    assert sorted(path.name for path in folder.iterdir()) == ["step-00000010", "step-00000100"]


def test_order_is_that_of_the_steps_however_many_digits(pretrainer, tmp_path):
    checkpoints = Checkpoints(tmp_path / "checkpoints", IDENTITY, keep=2)
    for step in (99_999_999, 100_000_000):
        checkpoints.save(pretrainer, step, {})
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-100000000", "step-99999999"]
    assert checkpoints.restore(pretrainer)[0] == 100_000_000
    checkpoints.save(pretrainer, 100_000_001, {})
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-100000000", "step-100000001"]


def test_settings_that_changed_are_remembered_over_checkpoints(pretrainer, tmp_path, caplog):
    def open_with(total):
        checkpoints = Checkpoints(tmp_path / "checkpoints", IDENTITY, settings={"total": total})
        checkpoints.find()
        return checkpoints

    open_with(24).save(pretrainer, 7, {})
    checkpoints = open_with(30)
    assert "Going on from step 7 with another total (24, now 30)" in caplog.text
    checkpoints.save(pretrainer, 14, {})
    assert open_with(30).history == checkpoints.history == [[7, {"total": 24}]]
    assert open_with(24).history == [[7, {"total": 24}], [14, {"total": 30}]]
    again = open_with(30)
    assert list_earlier(again.history, again.settings, ("total",), 30) == [[7, {"total": 24}]]
