"""What may change while a run lasts and what may not, and that the result's key says what was done."""

import json
import logging
from dataclasses import replace

import keras
import numpy as np
import pytest

from keras_bert_flow.cli import explain
from keras_bert_flow.config import pipeline
from keras_bert_flow.distribution.cluster import SINGLE
from keras_bert_flow.results.manifest import is_published, read_manifest, write_manifest
from keras_bert_flow.results.stages.models import PRETRAINING, pretraining_key
from keras_bert_flow.text.vocabulary import read_vocabulary, write_vocabulary
from keras_bert_flow.training import processes
from keras_bert_flow.training.loop import identity
from keras_bert_flow.training.loop.logs import Interrupted, read_log
from keras_bert_flow.training.pretraining.pretrain import pretrain
from tests.oracles.tiny_records import make_tiny_config, write_tiny_records
from tests.training.pretrain_child import arrange

pytestmark = pytest.mark.any_backend

SETTINGS = {
    "total_steps": 12,
    "log_every_steps": 3,
    "evaluate_every_steps": 6,
    "checkpoint_every_steps": 4,
    "warmup_steps": 2,
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("changes")
    write_tiny_records(place / "records")
    return place


@pytest.fixture(scope="module")
def finished(place):
    return pretrain(make_tiny_config(**SETTINGS), place / "records", place / "finished", lambda line: None)


@pytest.fixture(scope="module")
def stopped(place):
    """The output of a run that was stopped after step 5, in the middle of an interval."""
    return stop(place, "stopped", SETTINGS)


def stop(place, name, settings, step=5):
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Interrupted):
        arrange(f"step:{step}", patch.setattr)
        pretrain(make_tiny_config(**settings), place / "records", place / name, lambda line: None)
    return place / name


def weights_of(folder):
    return (folder / "model" / "model.safetensors").read_bytes()


def fail(line):
    raise AssertionError(f"trained again to step {line['step']}")


def test_changed_intervals_go_on_to_the_same_weights_and_key(place, finished):
    output = stop(place, "intervals", SETTINGS)
    changed = {
        "log_every_steps": 1,
        "evaluate_every_steps": 4,
        "checkpoint_every_steps": 5,
        "keep_checkpoints": 1,
        "keep_best": False,
        "tensorboard": False,
        "peak_flops": 1e9,
    }
    config = make_tiny_config(**SETTINGS | changed).model_copy(update={"name": "another"})
    pretrain(config, place / "records", output, lambda line: None)
    assert weights_of(output) == weights_of(finished)
    assert [line["step"] for line in read_log(output)] == [3, 4, 5, 6, 7, 8, 9, 10, 11, 12]
    assert read_manifest(output).key == read_manifest(finished).key
    assert "earlier" not in read_manifest(output).config
    pretrain(make_tiny_config(**SETTINGS), place / "records", output, fail)


@pytest.mark.slow
def test_shorter_intervals_take_up_an_interval_that_is_longer(place, finished):
    """Steps 7 and 8 are done and not in the log: the next line has both, and the ones behind it one step each."""
    output = stop(place, "shorter", SETTINGS | {"checkpoint_every_steps": 6}, step=8)
    pretrain(make_tiny_config(**SETTINGS | {"log_every_steps": 1}), place / "records", output, lambda line: None)
    log = read_log(output)
    assert [line["step"] for line in log] == [3, 6, 8, 9, 10, 11, 12]
    assert weights_of(output) == weights_of(finished)
    losses = [line["loss"] for line in read_log(finished)]  # of the steps up to 3, 4, 6, 8, 9 and 12
    assert log[2]["loss"] == losses[3]


@pytest.mark.slow
def test_changed_total_steps_go_on_with_the_new_schedule_and_another_key(place, caplog):
    output, rates = stop(place, "total", SETTINGS), []
    longer = make_tiny_config(**SETTINGS | {"total_steps": 18, "log_every_steps": 1})
    note_rate = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: rates.append(float(note_rate.model.optimizer.learning_rate))
    )
    with caplog.at_level(logging.WARNING):
        pretrain(longer, place / "records", output, lambda line: None, callbacks=[note_rate])
    assert [record.message for record in caplog.records].count(
        "Going on from step 5 with another total_steps (12, now 18)."
    ) == 1
    # The rate after 5 to 18 steps: a line from 0.01 after the warm-up of 2 to 0 at 18. (The interval to 5 is done.)
    np.testing.assert_allclose(rates, [0.01 * (18 - step) / 16 for step in range(5, 19)], atol=1e-8)
    assert read_log(output)[-1]["step"] == 18
    manifest, fresh = read_manifest(output), pretraining_key(longer, place / "records")
    assert manifest.config["earlier"] == [[5, {"total_steps": 12}]]
    assert manifest.key == pretraining_key(longer, place / "records", earlier=manifest.config["earlier"]) != fresh
    assert not is_published(output, fresh)  # a flow that wants what 18 steps of one schedule give must not find it
    assert pretrain(longer, place / "records", output, fail) == output


@pytest.mark.slow
def test_total_steps_do_not_matter_where_the_rate_stays(place):
    """The same steps in the same order, whatever the end was thought to be."""
    constant = SETTINGS | {"decay": "constant"}
    output = stop(place, "constant", constant | {"total_steps": 30})
    pretrain(make_tiny_config(**constant), place / "records", output, lambda line: None)
    whole = pretrain(make_tiny_config(**constant), place / "records", place / "whole", lambda line: None)
    assert weights_of(output) == weights_of(whole)


def test_run_may_end_where_it_is_but_not_before(place):
    output = stop(place, "less", SETTINGS, step=7)
    with pytest.raises(ValueError) as caught:
        pretrain(make_tiny_config(**SETTINGS | {"total_steps": 6}), place / "records", output, fail)
    assert "total_steps=6 and a checkpoint of step 7. Choose at least 7" in str(caught.value)
    assert explain(caught.value) == 2
    shorter = make_tiny_config(**SETTINGS | {"total_steps": 7})
    pretrain(shorter, place / "records", output, lambda line: None)
    assert json.loads((output / "metrics.json").read_text())["steps"] == 7
    assert [line["step"] for line in read_log(output)] == [3, 4, 6, 7]
    assert read_manifest(output).config["earlier"] == [[7, {"total_steps": 12}]]


@pytest.mark.parametrize(
    ("settings", "model", "change"),
    [
        ({"learning_rate": 0.02}, {}, "pretraining.learning_rate (0.01, now 0.02)"),
        ({"warmup_steps": 4}, {}, "pretraining.warmup_steps (2, now 4)"),
        ({"optimizer": "lamb"}, {}, "pretraining.optimizer (adamw, now lamb)"),
        (
            {"masking": "dynamic", "batch_size": 4},
            {},
            "pretraining.batch_size (5, now 4), pretraining.masking (static,",
        ),
        ({}, {"hidden_dim": 24}, "model.hidden_dim (16, now 24)"),
        ({}, {"dropout_rate": 0.2}, "model.dropout_rate (0.1, now 0.2)"),
    ],
)
def test_changed_setting_is_refused_by_name(place, stopped, settings, model, change):
    config = make_tiny_config(model, **SETTINGS | settings)
    assert refusal(config, place / "records", stopped).startswith(f"another {change}")


@pytest.mark.slow
def test_automatic_precision_is_kept_or_refused_by_name(place, monkeypatch):
    """A run that another machine takes up, where `auto` means another arithmetic."""
    automatic, choice = SETTINGS | {"precision": "auto"}, "mixed_bfloat16"
    monkeypatch.setattr(pipeline, "choose_precision", lambda backend: choice)
    output = stop(place, "automatic", automatic)
    choice = "float32"
    change = refusal(make_tiny_config(**automatic), place / "records", output)
    assert change.startswith("another pretraining.precision (mixed_bfloat16, now float32)")
    named = make_tiny_config(**SETTINGS | {"precision": "mixed_bfloat16"})
    pretrain(named, place / "records", output, lambda line: None)
    manifest = read_manifest(output)
    assert manifest.config["pretraining"]["precision"] == "mixed_bfloat16"
    assert manifest.key == pretraining_key(named, place / "records")


def refusal(config, records, output):
    """Return what has changed, by the one line that says so."""
    before = sorted(path.name for path in output.with_name(f".{output.name}.work").rglob("*"))
    with pytest.raises(ValueError, match="A run must go on as it began") as caught:
        pretrain(config, records, output, fail)
    assert explain(caught.value) == 2
    message = str(caught.value)
    assert "\n" not in message and message.endswith("Undo the change, or choose another output folder.")
    assert sorted(path.name for path in output.with_name(f".{output.name}.work").rglob("*")) == before
    return message[message.index("another") :]


def test_changed_seed_is_refused(place, stopped):
    config = make_tiny_config(**SETTINGS).model_copy(update={"seed": 5})
    assert refusal(config, place / "records", stopped).startswith("another seed (1, now 5).")


def test_changed_records_are_refused_by_file(place, stopped):
    others = write_tiny_records(place / "others", train=(13, 11))
    change = refusal(make_tiny_config(**SETTINGS), others, stopped)
    assert "records, file train-00001-of-00002.tfrecord (" in change
    assert "train-00000" not in change and "vocabulary" not in change
    digest = {file.name: file.sha256 for file in read_manifest(others).files}["train-00001-of-00002.tfrecord"]
    assert f"now {digest[:12]})" in change


def test_changed_vocabulary_is_refused(place, stopped):
    others = write_tiny_records(place / "vocabulary")
    pieces = read_vocabulary(others / "vocab.txt")
    write_vocabulary(others / "vocab.txt", [*pieces[:-1], "other"])
    manifest = read_manifest(others)
    files = [file for file in manifest.files if file.name != "vocab.txt"]
    write_manifest(others, "records", "key", manifest.config, {}, {}, files)
    change = refusal(make_tiny_config(**SETTINGS), others, stopped)
    assert change.startswith("another vocabulary (") and "records" not in change


def test_changed_software_is_refused(place, stopped, monkeypatch):
    monkeypatch.setattr(keras, "__version__", "3.99.0")
    monkeypatch.setattr(identity, "PRETRAINING", replace(PRETRAINING, revision=PRETRAINING.revision + 1))
    monkeypatch.setattr(processes, "start_cluster", lambda *_: SINGLE)  # it knows no such backend
    monkeypatch.setattr(keras.backend, "backend", lambda real=keras.backend.backend: f"{real()}s")
    change = refusal(make_tiny_config(**SETTINGS), place / "records", stopped)
    name = keras.backend.backend()
    assert change.startswith(f"another backend ({name[:-1]}, now {name}), Keras version (3.1")
    assert f", revision of the stage ({PRETRAINING.revision}, now {PRETRAINING.revision + 1})" in change


def test_a_checkpoint_of_an_earlier_version_is_refused_in_few_words():
    now = {"seed": 1, "keras": "3.16", "revision": 1}
    earlier = {
        "seed": 1,
        "keras": "3.16",
        "package": "0.1.0",
        "code": {f"keras_bert_flow.{name}": "0" * 64 for name in "ab"},
    }
    assert identity.list_changes(earlier, now) == "revision of the stage (None, now 1)"
    assert identity.list_changes(now, now) is None


def test_a_setting_that_is_off_is_in_no_identity(place):
    off, on = (
        identity.pretraining_identity(make_tiny_config(**SETTINGS, scan_layers=value), place / "records")
        for value in (False, True)
    )
    assert "scan_layers" not in off["pretraining"]  # as in checkpoints from before there was one
    assert identity.list_changes(off, on) == "pretraining.scan_layers (None, now True)"


def test_many_changes_are_counted(place, stopped):
    config = make_tiny_config(
        **SETTINGS | {"learning_rate": 0.5, "batch_size": 4, "decay": "cosine", "warmup_steps": 3}
    )
    config = config.model_copy(update={"seed": 2})
    others = write_tiny_records(place / "many", seed=9)
    change = refusal(config, others, stopped)
    assert change.count(", now ") == identity.MAX_SHOWN and " and 3 more." in change  # four settings, three files
