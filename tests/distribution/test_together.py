"""What must hold in all processes at once: steps that are left out, ends, falls back, first weights, the best ones."""

import json

import keras
import pytest

from keras_bert_flow.console.interrupts import CHECKPOINTED, USER_ERROR
from keras_bert_flow.data.pretraining import pretraining_dataset
from keras_bert_flow.data.pretraining_records import PretrainingRecords
from keras_bert_flow.training.loop.logs import read_log
from keras_bert_flow.training.pretraining.pretrain import pretrain
from tests.distribution.child import SHAPE, damage
from tests.distribution.processes import start_children
from tests.distribution.test_same_steps import BATCH_SIZE, SETTINGS, assert_same_run
from tests.oracles.tiny_records import make_tiny_config, write_tiny_records

BACKEND = keras.backend.backend()
PLACES = {"jax": {"processes": 1, "devices": 8}, "tensorflow": {"processes": 1, "devices": 2}}
PLACE = PLACES.get(BACKEND, {"processes": 2})
TWO = {"processes": 2}
CUT = {"processes": 1, "devices": 8, "distribution": {"kind": "model_parallel", "model_parallel": 2}}
EVERY_PLACE = {"jax": [PLACE, TWO, CUT], "tensorflow": [PLACE, TWO]}.get(BACKEND, [TWO])
SHORT = SETTINGS | {"total_steps": 8, "evaluate_every_steps": 4, "checkpoint_every_steps": 2}
DAMAGED_STEP = 5
RATES = dict.fromkeys(("dropout_rate", "attention_dropout_rate"), 0.0)


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    return write_tiny_records(tmp_path_factory.mktemp("together") / "records", train=(160,))


@pytest.fixture(scope="module")
def alone(records):
    return train_alone(records, "alone")


def train_alone(records, name, initial_model=None, **settings):
    config = make_tiny_config(SHAPE | RATES, **SHORT | settings)
    return pretrain(config, records, records.parent / name, lambda line: None, initial_model=initial_model)


def train_in_children(records, name, settings=None, number=0, **options):
    """Return the folder of the run and what each process saw."""
    output, settings = records.parent / name, SHORT | (settings or {})
    seen = records.parent / f"{name}-seen-{number}"
    return output, start_children(BACKEND, seen, settings=settings, records=str(records), output=str(output), **options)


def find_damage(records):
    """Return the tokens of a record that the last device reads for `DAMAGED_STEP`."""
    config = make_tiny_config()
    masking = config.pretraining.masking
    batches = iter(pretraining_dataset(PretrainingRecords(records), BATCH_SIZE, config.seed, DAMAGED_STEP - 1, masking))
    return next(batches)[0]["token_ids"][-1].tolist()


@pytest.mark.slow
@pytest.mark.any_backend
@pytest.mark.skipif(BACKEND == "tensorflow", reason="refused under a strategy")
def test_all_leave_out_a_step_that_one_cannot_make(records, monkeypatch):
    settings = {"non_finite": "skip", "max_skipped_steps": 2}
    output, _ = train_in_children(records, "skipped", settings, damaged=find_damage(records), **PLACE)
    monkeypatch.setattr(PretrainingRecords, "__getitem__", damage(PretrainingRecords.__getitem__, find_damage(records)))
    assert_same_run(output, train_alone(records, "skipped-alone", **settings))
    log = read_log(output)
    assert [line["skipped_steps"] for line in log] == [0] * 4 + [1] * 4
    assert [line["step"] for line in log if "loss" not in line] == [DAMAGED_STEP]
    assert json.loads((output / "metrics.json").read_text())["skipped_steps"] == 1


@pytest.mark.slow
def test_all_stop_at_a_step_and_fall_back_to_one_checkpoint(records, alone):
    """Damage of a record ends the run after step 4; the checkpoint of that step is damaged too, and step 2 is there."""
    output, seen = train_in_children(records, "fallen", damaged=find_damage(records), **TWO)
    assert {part["status"] for part in seen} == {USER_ERROR}
    assert all(f"NaN or infinity in the loss at step {DAMAGED_STEP}." in part["message"] for part in seen)
    folder = output.with_name(f".{output.name}.work") / "checkpoints"
    assert sorted(path.name for path in folder.glob("step-*")) == ["step-00000002", "step-00000004"]
    (folder / "step-00000004" / "state.safetensors").write_bytes(b"damaged")
    output, seen = train_in_children(records, "fallen", number=1, **TWO)
    assert [line["step"] for line in seen[0]["steps"]] == list(range(3, 9))
    assert_same_run(output, alone)


@pytest.mark.slow
def test_ctrl_c_in_one_stops_all_and_they_go_on_with_more_steps(records, alone):
    """`total_steps` is changed on the way, which all must know of."""
    settings = {"total_steps": 12, "decay": "constant", "publish": "best", "evaluate_every_steps": 5}
    output, seen = train_in_children(records, "interrupted", settings, stop_at=8, signal="SIGINT", **TWO)
    assert {part["status"] for part in seen} == {CHECKPOINTED}
    assert [line["step"] for line in seen[0]["steps"]] == list(range(1, 9))
    settings |= {"total_steps": 10}
    output, seen = train_in_children(records, "interrupted", settings, number=1, **TWO)
    assert [line["step"] for line in seen[0]["steps"]] == [9, 10]
    manifest = json.loads((output / "manifest.json").read_text())
    assert [until for until, _ in manifest["config"]["earlier"]] == [8]
    assert_same_run(output, train_alone(records, "uninterrupted", **settings))


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(EVERY_PLACE)))
def test_all_go_on_from_one_model_and_publish_the_best(records, alone, number):
    """A rate that rises to 0.3 makes the best step the first that is measured."""
    settings = {"publish": "best", "learning_rate": 0.3, "warmup_steps": 8, "evaluate_every_steps": 2}
    settings |= {"rematerialise": True}
    first, name = alone / "model", f"second-{number}"
    output, _ = train_in_children(records, name, settings, initial_model=str(first), **EVERY_PLACE[number])
    expected = train_alone(records, f"{name}-alone", first, **settings)
    metrics, wanted = (json.loads((folder / "metrics.json").read_text()) for folder in (output, expected))
    assert metrics["published_step"] == wanted["published_step"] == 2
    assert metrics["masked_lm_loss"] == pytest.approx(wanted["masked_lm_loss"], abs=1e-5)
    log, expected_log = read_log(output), read_log(expected)
    assert log[0]["loss"] == pytest.approx(expected_log[0]["loss"], abs=1e-5)
    # The batch is the one that `alone` began with: were it begun anew, so would be the loss.
    assert log[0]["loss"] < read_log(alone)[0]["loss"] - 0.05


@pytest.mark.slow
def test_processes_with_other_settings_are_refused(records):
    output, seen = train_in_children(records, "others", last={"total_steps": 9}, **TWO)
    assert {part["status"] for part in seen} == {USER_ERROR}
    assert all(
        "must be given the same. Received: another pretraining in some of 2." in part["message"] for part in seen
    )
    assert not output.exists()


@pytest.mark.slow
@pytest.mark.skipif(BACKEND == "tensorflow", reason="refused under a strategy")
def test_half_precision_has_one_scale(records):
    settings = {"precision": "mixed_float16", "accumulate_batches": 2}
    place = PLACE | ({"devices": 4} if BACKEND == "jax" else {})
    output, _ = train_in_children(records, "half", settings, **place)
    log, expected = read_log(output), read_log(train_alone(records, "half-alone", **settings))
    assert [line["loss_scale"] for line in log] == [line["loss_scale"] for line in expected]
    for line, expected_line in zip(log, expected, strict=True):
        assert line["loss"] == pytest.approx(expected_line["loss"], abs=5e-3), line["step"]  # float16 has 11 bits
