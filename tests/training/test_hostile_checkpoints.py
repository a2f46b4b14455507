"""Checkpoints whose digests are right and whose content is not: the newest whole one is restored, or one line says why.

The variables of a model are stood in for by a few arrays: nothing here depends on Keras.
"""

import hashlib
import json
import random
import resource
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from keras_bert_flow.results.artifacts import canonical_json, file_digest
from keras_bert_flow.training.loop.checkpoints import STATE_FILE, TRAIN_STATE_FILE, Checkpoints, DamagedError

IDENTITY = {"seed": 1}
VALUES = (None, True, -1, 10**30, 1e400, "", "x", [], [[]], {}, {"a": []})


class Variable:
    def __init__(self, path, value):
        self.path, self.value = path, np.array(value)

    shape = property(lambda self: self.value.shape)

    def assign(self, value):
        self.value = value


def make_model(bias=0.0):
    weights = [Variable("kernel", np.ones((3, 2), "float32")), Variable("bias", np.full(2, bias, "float32"))]
    seeds = [Variable("seed_generator_state", np.array([7, 8], "uint32"))]
    optimizer = SimpleNamespace(variables=[Variable("iteration", np.array(5, "int32"))])
    return SimpleNamespace(trainable_variables=weights, non_trainable_variables=seeds, optimizer=optimizer)


@pytest.fixture
def newest(tmp_path, monkeypatch):
    """Write checkpoints of the steps 1 and 2, and return the folder of the second."""
    monkeypatch.setattr("keras_bert_flow.training.loop.checkpoints.read_variable", lambda variable: variable.value)
    checkpoints = Checkpoints(tmp_path, IDENTITY)
    for step in (1, 2):
        checkpoints.save(make_model(step), step, {"at": step})
    return tmp_path / "step-00000002"


def restore(newest):
    model = make_model()
    return Checkpoints(newest.parent, IDENTITY).restore(model), model.trainable_variables[1].value.tolist()


def sign(newest, **changes):
    """Change what a checkpoint says, and make its digests right again."""
    facts = json.loads((newest / TRAIN_STATE_FILE).read_text()) | changes
    facts["state_sha256"] = file_digest(newest / STATE_FILE)
    facts.pop("sha256", None)
    facts["sha256"] = hashlib.sha256(canonical_json(facts).encode()).hexdigest()
    (newest / TRAIN_STATE_FILE).write_text(json.dumps(facts))


def test_signed_checkpoint_is_restored(newest):
    sign(newest, progress={"at": 9})
    assert restore(newest) == ((2, {"at": 9}), [2, 2])


@pytest.mark.parametrize("name", ["step", "identity", "settings", "history", "progress"])
def test_facts_of_wrong_types_are_damage(newest, name):
    kind = {"step": int, "history": list}.get(name, dict)
    for value in VALUES:
        if not isinstance(value, kind) or value == -1:
            sign(newest, **{name: value})
            assert restore(newest) == ((1, {"at": 1}), [1, 1])


def test_sparse_state_is_damage_and_is_not_read(newest):
    with open(newest / STATE_FILE, "r+b") as file:
        file.truncate(10 << 30)
    before = resource.getrusage(resource.RUSAGE_SELF)
    assert restore(newest)[0] == (1, {"at": 1})
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert after.ru_maxrss - before.ru_maxrss < 64 << 10  # KiB
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 3  # seconds; the digest takes ten


@pytest.mark.parametrize("name", ["model/bias", "optimizer/iteration"])
def test_states_of_other_shapes_are_refused_before_any_is_assigned(newest, name):
    state = load_file(newest / STATE_FILE)
    save_file(state | {name: np.ones((2, 2), "float32")}, newest / STATE_FILE)
    sign(newest)
    with pytest.raises(ValueError, match=rf"differs in {name} \(model \(.*\), checkpoint \(2, 2\)\)"):
        restore(newest)


def test_states_must_be_finite(newest):
    save_file(load_file(newest / STATE_FILE) | {"model/bias": np.array([1, np.nan], "float32")}, newest / STATE_FILE)
    sign(newest)
    with pytest.raises(ValueError, match="model/bias with NaN or infinity"):
        restore(newest)


@pytest.mark.parametrize("count", [300, pytest.param(20_000, marks=pytest.mark.slow)])
def test_mutated_checkpoints_fall_back_or_are_refused(newest, count):
    chance = random.Random(0)
    whole = {name: (newest / name).read_bytes() for name in (STATE_FILE, TRAIN_STATE_FILE)}
    for number in range(count):
        name = chance.choice(list(whole))
        damaged = bytearray(whole[name])
        damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        (newest / name).write_bytes(damaged)
        try:
            if number % 2:
                sign(newest)
            found = restore(newest)[0][0]
        except (DamagedError, ValueError):  # whose digests are right may be of another run or another model
            assert number % 2
        else:
            assert found == 1 or number % 2
        for name, content in whole.items():
            (newest / name).write_bytes(content)
