"""The best checkpoint of a run: the lowest held-out loss, over any restart, published when that is asked for."""

import json
import os

import keras
import numpy as np
import pytest

from keras_bert_flow.cli import explain
from keras_bert_flow.config.loading import load_config
from keras_bert_flow.data.pretraining import ordered_batches
from keras_bert_flow.data.pretraining_records import PretrainingRecords
from keras_bert_flow.models.pretraining.masked_lm import BertPretrainer
from keras_bert_flow.text.objectives.objective import find_objective
from keras_bert_flow.training.loop.checkpoints import BestCheckpoint
from keras_bert_flow.training.loop.logs import Interrupted, read_log
from keras_bert_flow.training.optimizers.adam import adamw
from keras_bert_flow.training.pretraining import pretrain as module
from keras_bert_flow.training.pretraining.pretrain import pretrain
from keras_bert_flow.training.pretraining.pretrainers import make_pretrainer
from keras_bert_flow.training.pretraining.validation import score_pretraining
from tests.oracles.tiny_records import make_tiny_config, write_tiny_records
from tests.training.pretrain_child import arrange

pytestmark = pytest.mark.any_backend

# A rate that rises so high that the model gets worse, so that the best is not the last.
SETTINGS = {
    "total_steps": 12,
    "learning_rate": 1.0,
    "warmup_steps": 12,
    "evaluate_every_steps": 2,
    "checkpoint_every_steps": 5,
}


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    return write_tiny_records(tmp_path_factory.mktemp("best") / "records")


@pytest.fixture(scope="module")
def last(records):
    return pretrain(make_tiny_config(**SETTINGS), records, records.parent / "last", lambda line: None)


def weights_of(folder):
    return (folder / "model" / "model.safetensors").read_bytes()


def best_step(folder):
    lines = [line for line in read_log(folder) if "held_out_masked_lm_loss" in line]
    return min(lines, key=lambda line: line["held_out_masked_lm_loss"])["step"]


def test_best_model_is_published_when_asked_for(records, last):
    config = make_tiny_config(**SETTINGS, publish="best")
    output = pretrain(config, records, records.parent / "best", lambda line: None)
    step = best_step(output)
    assert step == best_step(last) and step < 8
    metrics = json.loads((output / "metrics.json").read_text())
    assert metrics["published_step"] == step and metrics["steps"] == 12
    assert metrics["masked_lm_loss"] == min(line.get("held_out_masked_lm_loss", 9) for line in read_log(output))
    batches = ordered_batches(PretrainingRecords(records, "held_out"), 5, 6)
    model = BertPretrainer.from_preset(output / "model")
    loss = score_pretraining(model, batches, find_objective("mlm_nsp"))["masked_lm_loss"]
    assert loss == pytest.approx(metrics["masked_lm_loss"], rel=1e-6)
    assert weights_of(output) != weights_of(last)
    assert not list(output.glob("checkpoints*"))


@pytest.mark.slow
def test_best_model_is_the_same_after_stops(records):
    config, output = make_tiny_config(**SETTINGS, publish="best"), records.parent / "stopped"
    for moment in (f"held_out:{best_step(records.parent / 'best')}", "step:8", "step:9"):
        with pytest.MonkeyPatch.context() as patch, pytest.raises(Interrupted):
            arrange(moment, patch.setattr)
            pretrain(config, records, output, lambda line: None)
    pretrain(config, records, output, lambda line: None)
    assert weights_of(output) == weights_of(records.parent / "best")


@pytest.mark.slow
def test_best_is_published_after_a_kill_between_training_and_its_folder(records, monkeypatch):
    def die(*arguments, **named):
        raise KeyboardInterrupt

    config, output = make_tiny_config(**SETTINGS, publish="best"), records.parent / "killed"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(module, "save_model_directory", die)
        pretrain(config, records, output, lambda line: None)
    kept = records.parent / ".killed.work" / "checkpoints"
    assert sorted(os.listdir(kept)) == ["best", "step-00000010", "step-00000012"]
    assert os.listdir(kept / "best") == [f"step-{best_step(kept.parent):08d}"]
    pretrain(config, records, output, lambda line: None)
    assert weights_of(output) == weights_of(records.parent / "best")


def test_only_a_lower_score_replaces_the_best(tmp_path):
    model = make_pretrainer(make_tiny_config().model, 50)
    model.compile(optimizer=adamw(0.01, 100, 2))
    model.optimizer.build(model.trainable_variables)
    bias = model.get_layer("nsp").bias
    for step, score in enumerate((3.0, 2.0, 2.0, float("nan"), 2.5)):
        bias.assign(np.full(2, step, "float32"))
        BestCheckpoint(tmp_path / "best", {}).offer(model, step, score)  # in a process of its own, as it were
    assert BestCheckpoint(tmp_path / "best", {}).restore(model) == 1
    assert keras.ops.convert_to_numpy(bias.value).tolist() == [1, 1]
    assert os.listdir(tmp_path / "best") == ["step-00000001"]
    assert BestCheckpoint(tmp_path / "none", {}).restore(model) is None


@pytest.fixture
def bias_model():
    model = make_pretrainer(make_tiny_config().model, 50)
    model.compile(optimizer=adamw(0.01, 100, 2))
    model.optimizer.build(model.trainable_variables)
    return model


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["state.safetensors", "train_state.json"])
def test_damaged_best_is_refused_where_it_is_needed_and_else_forgotten(bias_model, tmp_path, caplog, name):
    BestCheckpoint(tmp_path / "best", {}).offer(bias_model, 4, 2.0)
    flip(tmp_path / "best" / "step-00000004" / name)
    with pytest.raises(
        ValueError, match=r"best checkpoint must be whole to be published\. .*pretraining\.publish=last"
    ):
        BestCheckpoint(tmp_path / "best", {}, is_needed=True)
    best = BestCheckpoint(tmp_path / "best", {})
    assert "step-00000004 is damaged" in caplog.text
    assert best.restore(bias_model) is None
    best.offer(bias_model, 6, 3.0)
    assert os.listdir(tmp_path / "best") == ["step-00000006"]
    assert BestCheckpoint(tmp_path / "best", {}, is_needed=True).restore(bias_model) == 6


def test_best_that_is_damaged_meanwhile_is_refused(bias_model, tmp_path):
    best = BestCheckpoint(tmp_path / "best", {}, is_needed=True)
    best.offer(bias_model, 4, 2.0)
    flip(tmp_path / "best" / "step-00000004" / "state.safetensors")
    with pytest.raises(ValueError, match="best checkpoint must be whole"):
        best.restore(bias_model)


def test_best_of_steps_that_are_done_again_otherwise_is_forgotten(bias_model, tmp_path, caplog):
    BestCheckpoint(tmp_path / "best", {}, lambda step: [[step, {"total_steps": 24}]]).offer(bias_model, 9, 2.0)

    def spans(until, step):
        return [[min(until, step), {"total_steps": 24}]] + ([[step, {"total_steps": 30}]] if step > until else [])

    later = BestCheckpoint(tmp_path / "best", {}, lambda step: spans(12, step))  # changed at step 12
    later.offer(bias_model, 16, 3.0)
    assert os.listdir(tmp_path / "best") == ["step-00000009"] and caplog.text == ""
    sooner = BestCheckpoint(tmp_path / "best", {}, lambda step: spans(7, step))  # gone back to step 7, and changed
    assert "step 9 is done again with other settings" in caplog.text
    assert sooner.restore(bias_model) is None
    sooner.offer(bias_model, 9, 3.0)
    assert BestCheckpoint(tmp_path / "best", {}, lambda step: spans(7, step)).restore(bias_model) == 9


@pytest.mark.slow
def test_damaged_best_ends_a_run_before_it_trains(records, last, monkeypatch):
    config, output = make_tiny_config(**SETTINGS, publish="best"), records.parent / "damaged"
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        arrange("step:8", patch.setattr)
        pretrain(config, records, output, lambda line: None)
    (best,) = (records.parent / ".damaged.work" / "checkpoints" / "best").iterdir()
    flip(best / "state.safetensors")
    lines = []
    with pytest.raises(ValueError, match="best checkpoint must be whole") as caught:
        pretrain(config, records, output, lines.append)
    assert explain(caught.value) == 2 and not lines
    pretrain(make_tiny_config(**SETTINGS, publish="last"), records, output, lines.append)
    assert weights_of(output) == weights_of(last)


def test_publishing_the_best_needs_it_kept():
    with pytest.raises(ValueError, match="`publish: best` must have the best checkpoint kept"):
        load_config(None, ["pretraining.publish=best", "pretraining.keep_best=false"])


def test_run_without_held_out_records_publishes_its_last(tmp_path):
    records = write_tiny_records(tmp_path / "records", held_out=0)
    settings = {"total_steps": 3, "warmup_steps": 1}
    outputs = [
        pretrain(make_tiny_config(**settings, publish=publish), records, tmp_path / publish, lambda line: None)
        for publish in ("best", "last")
    ]
    assert weights_of(outputs[0]) == weights_of(outputs[1])
