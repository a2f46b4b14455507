"""Runs that end in time: fewer steps, whose learning rate still decays to its end, and the same bits where all fit."""

import itertools
import math
from types import SimpleNamespace

import keras
import numpy as np
import pytest

from keras_bert_flow.backends.values import read_variable
from keras_bert_flow.files.documents import read_json_object
from keras_bert_flow.training.finetuning import task_runs
from keras_bert_flow.training.finetuning.finetune import StageClock, finetune
from keras_bert_flow.training.loop import train
from keras_bert_flow.training.loop.logs import read_log
from keras_bert_flow.training.loop.steps import TimeLimit
from keras_bert_flow.training.optimizers.adam import make_guarded_optimizer
from keras_bert_flow.training.optimizers.schedules import PacedSteps, WarmupDecay
from keras_bert_flow.training.pretraining.pretrain import pretrain
from tests.oracles.tiny_records import make_tiny_config
from tests.training.separable_task import make_task_config, weights_of

ENDLESS = 10**6  # steps that no machine takes in the seconds of these tests


def ignore(line):
    pass


class Rates(keras.callbacks.Callback):
    """Notes the learning rate at the end of each interval."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_epoch_end(self, epoch, logs=None):
        self.seen.append(float(np.asarray(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))))


class Recorded:
    """A schedule that keeps what it is told, and counts each step for as many as it is told."""

    def __init__(self):
        self.begun, self.place, self.pace = 0, 0.0, 1.0

    def find_place(self, step):
        return self.place + self.pace * (step - self.begun)

    def set_pace(self, step, place, pace):
        self.begun, self.place, self.pace = step, place, pace


def follow(limit, seconds_of):
    """Take the steps of a machine whose steps take `seconds_of(elapsed)`; return the steps and the seconds taken."""
    step, elapsed = 0, 3.0  # to compile
    while step < limit.last_step:
        end = min(limit.next_measurement(step), limit.last_step)
        for _ in range(end - step):
            elapsed += seconds_of(elapsed)
        step = end
        limit.correct(step, elapsed)
    return step, elapsed


@pytest.mark.any_backend
@pytest.mark.parametrize(
    "seconds_of",
    [
        lambda elapsed: 0.1,
        lambda elapsed: 0.1 if elapsed < 60 else 0.3,
        lambda elapsed: 0.3 if elapsed < 60 else 0.1,
        lambda elapsed: 0.1 + 0.1 * math.sin(elapsed / 20) ** 2,
    ],
    ids=["steady", "slower", "faster", "changing"],
)
def test_steps_fit_into_the_time_though_the_load_changes(seconds_of):
    schedule = Recorded()
    limit = TimeLimit(120.0, ENDLESS, schedule)
    steps, elapsed = follow(limit, seconds_of)
    assert 0.9 * 120 < elapsed <= 120
    assert schedule.find_place(steps) == pytest.approx(ENDLESS, rel=1e-6)  # the schedule is at its end
    assert steps < ENDLESS


@pytest.mark.any_backend
def test_a_fast_machine_takes_the_steps_of_the_schedule_and_no_more():
    schedule = Recorded()
    limit = TimeLimit(120.0, 500, schedule)
    assert follow(limit, lambda elapsed: 0.01) == (500, pytest.approx(8.0))
    assert schedule.pace == 1.0


@pytest.mark.any_backend
def test_time_that_is_over_ends_at_once_and_evaluations_are_counted():
    limit = TimeLimit(2.0, 500, Recorded())
    limit.correct(5, 3.0)
    assert limit.last_step == 5
    limit = TimeLimit(2.0, 500, schedule := Recorded(), least_steps=40)
    for step in (5, 20):
        limit.correct(step, float(step))
        assert limit.last_step == 40
    assert schedule.find_place(40) == pytest.approx(500, rel=1e-6)  # the rate still decays to its end
    limit.correct(40, 50.0)
    assert limit.last_step == 40
    for note, evaluations in ((0.0, 1), (40.0, 1), (40.0, 2)):
        limit = TimeLimit(101.0, 10_000, Recorded(), final_evaluations=evaluations)
        limit.evaluation_seconds = note
        limit.correct(5, 1.0)
        limit.correct(15, 2.0)
        steps = limit.last_step - 15
        assert steps == pytest.approx((0.98 * 101 - 1 - evaluations * note - 2) / 0.1, abs=1)


def test_a_compiled_step_follows_the_pace():
    inner = WarmupDecay(0.5, 4, 100)
    paced = PacedSteps(inner)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    optimizer = make_guarded_optimizer("adamw", paced, 0.0)
    model.compile(optimizer, "mse", auto_scale_loss=False)
    x, y = np.ones((4, 3), "float32"), np.ones((4, 1), "float32")
    places = []
    for step in range(12):
        if step == 6:
            paced.set_pace(6, paced.find_place(6), 10.0)
        if step == 9:
            paced.set_pace(9, paced.find_place(9), 2.0)
        model.train_on_batch(x, y)
        places.append(paced.find_place(step))
        rate = float(keras.ops.convert_to_numpy(optimizer.learning_rate))  # of the next step
        following = paced.find_place(step + 1)
        assert rate == pytest.approx(float(keras.ops.convert_to_numpy(inner(following))), rel=1e-6)
    assert places == [0, 1, 2, 3, 4, 5, 6, 16, 26, 36, 38, 40]
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(paced))
    assert float(again(10)) == pytest.approx(float(inner(10)))
    optimizer.reset()
    assert [paced.find_place(step) for step in (0, 7)] == [0, 7]
    assert all(np.isfinite(read_variable(variable)).all() for variable in optimizer.variables)


@pytest.fixture(scope="module")
def whole(records, tmp_path_factory):
    """A run without a limit."""
    folder = tmp_path_factory.mktemp("whole") / "out"
    pretrain(make_tiny_config(), records, folder, ignore)
    return folder


@pytest.mark.any_backend
def test_a_run_that_is_in_time_ends_in_the_bits_of_one_without_a_limit(whole, records, tmp_path):
    pretrain(make_tiny_config(minutes=60), records, tmp_path / "out", ignore)
    found, expected = (folder / "model" / "model.safetensors" for folder in (tmp_path / "out", whole))
    assert found.read_bytes() == expected.read_bytes()


@pytest.mark.any_backend
@pytest.mark.slow
def test_a_run_that_is_stopped_goes_on_and_ends_in_time(records, tmp_path, monkeypatch, caplog):
    ticks = itertools.count()
    monkeypatch.setattr(train, "time", SimpleNamespace(perf_counter=lambda: 0.5 * next(ticks)))
    settings = {"total_steps": ENDLESS, "checkpoint_every_steps": 10, "log_every_steps": 10, "minutes": 1}
    config, rates = make_tiny_config(**settings), Rates()

    def stop(line):
        if line["step"] >= 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pretrain(config, records, tmp_path / "out", stop)
    assert not (tmp_path / "out").exists()
    pretrain(config, records, tmp_path / "out", ignore, callbacks=[rates])
    metrics, log = read_json_object(tmp_path / "out" / "metrics.json"), read_log(tmp_path / "out")
    assert 10 < metrics["steps"] < ENDLESS and metrics["steps"] == log[-1]["step"]
    assert "held_out_masked_lm_loss" in log[-1]
    assert rates.seen[-1] == pytest.approx(0, abs=1e-4) and max(rates.seen) > 1e-3
    assert f"{metrics['steps']:,} of 1,000,000 steps fitted into" in caplog.text


@pytest.mark.any_backend
@pytest.mark.slow
def test_runs_of_a_fine_tuning_share_its_time(place, tmp_path):
    settings = {"seeds": (1, 2), "epochs": 1000, "random_max_epochs": 1000, "random_patience_epochs": 1000}
    config = make_task_config(place, minutes=8 / 60, **settings)
    clock = StageClock(config, tmp_path)
    assert clock.share() == pytest.approx(2.0, abs=0.5)  # a quarter of 8 seconds; a busy machine may pause
    (tmp_path / "pretrained" / "seed-1").mkdir(parents=True)
    (tmp_path / "pretrained" / "seed-1" / "run.json").write_text('{"seconds": 5.0}')
    assert StageClock(config, tmp_path).share() == pytest.approx(1.0, abs=0.5)  # a third of what is left
    finetune(config, place / "model", tmp_path / "out", ignore)
    for start in ("pretrained", "random"):
        for seed in (1, 2):
            log = read_log(tmp_path / "out" / start / f"seed-{seed}")
            assert log[-1]["step"] < 1000 * 10 and "dev_accuracy" in log[-1]
    assert weights_of(tmp_path / "out" / "pretrained" / "seed-1")


@pytest.mark.any_backend
@pytest.mark.parametrize(("least", "steps"), [(3, 5), (25, 10)])  # the speed is known after 5; an epoch has 10
@pytest.mark.first_form
def test_a_run_without_time_takes_the_least_steps_and_says_so(place, tmp_path, monkeypatch, caplog, least, steps):
    monkeypatch.setattr(task_runs, "LEAST_STEPS", least)
    config = make_task_config(place, minutes=1e-4, seeds=(1,), epochs=30, compare_random=False)
    folder = finetune(config, place / "model", tmp_path / "out", ignore) / "pretrained" / "seed-1"
    run, log = read_json_object(folder / "run.json"), read_log(folder)
    assert run["shortened"] == [steps, 300] and log[-1]["step"] == steps and "dev_accuracy" in log[-1]
    assert f"pretrained/seed-1: `finetuning.minutes` left time for {steps} of 300 steps." in caplog.messages
