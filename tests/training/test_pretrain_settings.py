"""Settings of pre-training do what they say, and records that do not fit them are refused."""

import json

import keras
import pytest

from keras_bert_flow.models.pretraining.masked_lm import BertPretrainer
from keras_bert_flow.results.manifest import write_manifest
from keras_bert_flow.training.pretraining.pretrain import pretrain
from keras_bert_flow.training.pretraining.pretrainers import compile_pretrainer, make_pretrainer
from tests.oracles.tiny_records import make_tiny_config, write_tiny_records


def test_settings_reach_the_optimizer():
    settings = {"optimizer": "lamb", "decay": "cosine", "decay_from": "start", "weight_decay": 0.2, "clip_norm": 0.7}
    config = make_tiny_config(**settings, batch_size=6, accumulate_batches=3)
    model = make_pretrainer(config.model, 50)
    compile_pretrainer(model, config)
    found = model.optimizer.inner_optimizer.get_config()
    assert [found[name] for name in ("name", "weight_decay", "global_clipnorm")] == ["lamb", 0.2, 0.7]
    accumulated = found["learning_rate"]["config"]
    assert found["gradient_accumulation_steps"] == accumulated["batches"] == 3
    schedule = {"peak": 0.01, "warmup_steps": 3, "total_steps": 12, "decay": "cosine", "decay_from": "start"}
    assert accumulated["schedule"]["config"] == schedule
    assert model.loss["mlm"].reduction == model.loss["nsp"].reduction == "sum"
    settings |= {"non_finite": "skip", "max_skipped_steps": 7}
    compile_pretrainer(model, make_tiny_config(**settings, batch_size=6, accumulate_batches=3))
    found = model.optimizer.get_config()
    assert (found["max_skipped_steps"], found["accumulate_batches"], found["scales_loss"]) == (7, 3, False)
    assert model.optimizer.inner_optimizer.get_config()["learning_rate"]["config"] == schedule


@pytest.mark.any_backend
def test_mixed_bfloat16_trains_and_leaves_the_policy_alone(records):
    lines = []
    settings = {"total_steps": 4, "log_every_steps": 2, "precision": "mixed_bfloat16"}
    output = pretrain(make_tiny_config(**settings), records, records.parent / "bfloat16", lines.append)
    assert [line["step"] for line in lines] == [2, 4]
    assert keras.config.dtype_policy().name == "float32"
    model = BertPretrainer.from_preset(output / "model")
    assert {variable.dtype for variable in model.trainable_variables} == {"float32"}


@pytest.mark.any_backend
def test_decay_is_the_one_that_was_asked_for(records):
    losses = {}
    for decay in ("linear", "constant"):
        lines = []
        settings = {"total_steps": 4, "warmup_steps": 0, "log_every_steps": 1, "decay": decay}
        pretrain(make_tiny_config(**settings), records, records.parent / decay, lines.append)
        losses[decay] = [line["loss"] for line in lines]
    assert losses["linear"][0] == losses["constant"][0]  # of the first weights
    assert losses["linear"][3] != losses["constant"][3]


@pytest.mark.any_backend
def test_log_tells_operations_a_second_and_their_share_of_the_peak(records, tmp_path):
    lines = []
    config = make_tiny_config(total_steps=4, log_every_steps=2, peak_flops=2e9)
    pretrain(config, records, tmp_path / "out", lines.append)
    # One layer of width 16 and 24 inside; 16 tokens, 3 predictions, 50 pieces; 5 sequences a step.
    block = 16 * (8 * 16**2 + 4 * 16 * 24 + 4 * 16 * 16)
    heads = 2 * 16**2 + 4 * 16 + 3 * (2 * 16**2 + 2 * 16 * 50)
    per_step = 5 * (3 * (block + heads) + 2 * (2 * 16 * 2 * 16 + 2 * 3 * 16 * 16))
    for line in lines:
        steps_per_second = line["tokens_per_second"] / (5 * 16)
        rounding = 1 / line["flops_per_second"]  # to one operation
        assert line["flops_per_second"] == pytest.approx(per_step * steps_per_second, rel=1 / line["tokens_per_second"])
        assert line["utilisation"] == pytest.approx(line["flops_per_second"] / 2e9, rel=rounding)


@pytest.mark.any_backend
def test_run_without_held_out_records_has_no_scores(tmp_path):
    records = write_tiny_records(tmp_path / "records", held_out=0)
    output = pretrain(make_tiny_config(total_steps=3), records, tmp_path / "out", lambda line: None)
    metrics = json.loads((output / "metrics.json").read_text())
    assert set(metrics) == {"steps", "tokens", "seconds", "tokens_per_second", "parameters"}


def test_records_that_do_not_fit_are_refused(records, tmp_path):
    with pytest.raises(ValueError, match="fit the model's 12 positions. Received: records of 16 tokens"):
        config = make_tiny_config()
        shape = config.model.model_copy(update={"max_positions": 12})
        pretrain(config.model_copy(update={"model": shape}), records, tmp_path / "out")
    empty = write_tiny_records(tmp_path / "empty", train=())
    with pytest.raises(ValueError, match="records to train on. Received: none"):
        pretrain(make_tiny_config(), empty, tmp_path / "out")
    write_manifest(tmp_path, "vocabulary", "k", {}, {}, {})
    with pytest.raises(ValueError, match="must hold records"):
        pretrain(make_tiny_config(), tmp_path, tmp_path / "out")
    assert [path.name for path in tmp_path.glob(".out*")] == []
