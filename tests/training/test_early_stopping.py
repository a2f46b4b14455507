"""A run ends where nothing is gained, and its best model is published; random weights are trained until then."""

from types import SimpleNamespace

import pytest

from keras_bert_flow.files.documents import read_json_object
from keras_bert_flow.training.finetuning.finetune import finetune
from keras_bert_flow.training.finetuning.grid import with_random_training
from keras_bert_flow.training.finetuning.task_runs import StopWithoutGain
from keras_bert_flow.training.loop.logs import append_log, read_log
from tests.training.separable_task import RUNS, make_task_config, weights_of


@pytest.mark.any_backend
@pytest.mark.slow
def test_run_ends_where_nothing_is_gained_and_the_best_is_published(place):
    settings = {"seeds": (1,), "compare_random": False, "patience_epochs": 2, "publish": "best"}
    output = finetune(make_task_config(place, **settings), place / "model", place / "patient", lambda line: None)
    scores = [line["dev_accuracy"] for line in read_log(output / RUNS[0]) if "dev_accuracy" in line]
    best = scores.index(max(scores))
    assert len(scores) == best + 1 + 2 < 12
    last = finetune(
        make_task_config(place, **settings | {"publish": "last"}), place / "model", place / "last", lambda line: None
    )
    shorter = make_task_config(place, seeds=(1,), compare_random=False, publish="best", patience_epochs=1)
    again = finetune(shorter, place / "model", place / "again", lambda line: None)
    assert weights_of(output / RUNS[0]) == weights_of(again / RUNS[0]) != weights_of(last / RUNS[0])
    assert not (output / RUNS[0] / "best").exists()


@pytest.mark.slow
@pytest.mark.any_backend
def test_random_weights_are_trained_until_nothing_is_gained(place):
    settings = {"seeds": (1,), "epochs": 1, "random_max_epochs": 30, "random_patience_epochs": 2}
    config, lines = make_task_config(place, learning_rate=0.05, **settings), []

    def die_in_the_second_epoch(line):
        lines.append(line)
        if line["run"] == RUNS[2] and line["step"] > 12:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        finetune(config, place / "model", place / "until", die_in_the_second_epoch)
    output = finetune(config, place / "model", place / "until", lambda line: None)
    whole = finetune(config, place / "model", place / "until, at once", lambda line: None)
    assert weights_of(output / RUNS[2]) == weights_of(whole / RUNS[2])
    assert read_log(output / RUNS[0])[-1]["step"] == 10
    found = [line for line in read_log(output / RUNS[2]) if "dev_accuracy" in line]
    scores, losses = ([line[f"dev_{name}"] for line in found] for name in ("accuracy", "loss"))
    assert scores == [line["dev_accuracy"] for line in read_log(whole / RUNS[2]) if "dev_accuracy" in line]
    gain = max(scores.index(max(scores)), losses.index(min(losses)))
    assert len(scores) == gain + 1 + 2 < 30
    assert read_json_object(output / RUNS[2] / "run.json")["score"] == max(scores)


def test_random_weights_try_the_rates_and_batches_of_the_grid(place):
    grid = {"learning_rate": [0.1, 0.2], "epochs": [2, 3], "batch_size": [8, 16]}
    config = make_task_config(place, grid=grid, random_max_epochs=9, random_patience_epochs=4)
    settings = with_random_training(config).finetuning
    assert settings.grid.model_dump(mode="json") == grid | {"epochs": [9]}
    assert (settings.epochs, settings.patience_epochs, settings.publish) == (9, 4, "best")
    assert (settings.learning_rate, settings.seeds) == (config.finetuning.learning_rate, config.finetuning.seeds)


@pytest.mark.parametrize(
    ("scores", "losses", "loss", "ends"),
    [
        ([0.5, 0.6, 0.6, 0.6], [3, 2, 1, 0], None, True),
        ([0.5, 0.6, 0.6, 0.6], [3, 2, 1, 0], "dev_loss", False),  # the loss still falls
        ([0.5, 0.6, 0.6, 0.6], [3, 2, 2, 2], "dev_loss", True),
        ([0.5, 0.6, 0.6], [3, 2, 2], "dev_loss", False),
        ([0.5, 0.6, 0.6, 0.7], [3, 2, 2, 2], "dev_loss", False),
    ],
)
def test_loss_counts_as_a_gain_where_it_is_asked_for(scores, losses, loss, ends, tmp_path):
    for step, (score, value) in enumerate(zip(scores, losses, strict=True), 1):
        append_log(tmp_path, {"step": step, "dev_accuracy": score, "dev_loss": float(value)})
    callback = StopWithoutGain(tmp_path, "dev_accuracy", 2, loss)
    callback.set_model(SimpleNamespace(stop_training=False))
    callback.on_epoch_end(0, {"loss": 1.0})  # no evaluation
    assert not callback.model.stop_training
    callback.on_epoch_end(1, {"dev_accuracy": scores[-1]})
    assert callback.model.stop_training == ends


@pytest.mark.any_backend
@pytest.mark.parametrize(("warmup", "ends"), [(0, 3), (1, 3), (2, 4), (4, 6)])
def test_patience_begins_where_the_learning_rate_has_risen(warmup, ends, tmp_path):
    callback = StopWithoutGain(tmp_path, "dev_accuracy", 2, warmup=warmup)
    callback.set_model(SimpleNamespace(stop_training=False))
    for epoch in range(1, ends + 1):
        assert not callback.model.stop_training
        append_log(tmp_path, {"step": epoch, "dev_accuracy": 0.5})
        callback.on_epoch_end(epoch, {"dev_accuracy": 0.5})
    assert callback.model.stop_training
