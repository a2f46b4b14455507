"""The training loop: as many optimizer steps as asked, one log line a border, stops that lose nothing."""

import os
import signal

import keras
import numpy as np
import pytest

from keras_bert_flow.backends.runtime import seed_everything
from keras_bert_flow.backends.unpadding import GROUPS
from keras_bert_flow.data.pretraining import pretraining_dataset
from keras_bert_flow.data.pretraining_records import PretrainingRecords
from keras_bert_flow.training.loop.checkpoints import Checkpoints
from keras_bert_flow.training.loop.logs import Interrupted, append_log, read_log, rewind_log
from keras_bert_flow.training.loop.steps import Interval, StepFollower
from keras_bert_flow.training.loop.train import Intervals, StepSize, train
from keras_bert_flow.training.optimizers.adam import adamw
from keras_bert_flow.training.pretraining.pretrainers import make_pretrainer
from tests.oracles.tiny_records import make_tiny_config, write_tiny_records


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    return PretrainingRecords(write_tiny_records(tmp_path_factory.mktemp("loop") / "records"))


@pytest.fixture
def model():
    seed_everything(1)
    model = make_pretrainer(make_tiny_config().model, 50)
    model.compile(optimizer=adamw(0.01, 100, 2))
    return model


def run(model, records, folder, intervals, evaluate=lambda follow: {}, report=lambda line: None):
    folder.mkdir(exist_ok=True)
    return train(
        model,
        lambda step: pretraining_dataset(records, 4, 1, step),
        intervals,
        folder,
        Checkpoints(folder / "checkpoints", {"run": 1}),
        evaluate,
        StepSize(4 * 16),
        report,
    )


@pytest.mark.parametrize(
    ("intervals", "steps"),
    [
        (Intervals(10, 4, 3, 5), [3, 4, 5, 6, 8, 9, 10]),
        (Intervals(6, 100, 100, 100), [6]),
        (Intervals(6, 2, 6, 4), [2, 4, 6]),
        (Intervals(10, 4, 4, 4, frozenset({1, 8, 9, 12})), [1, 4, 8, 9, 10]),
    ],
)
def test_ends_of_intervals_are_all_met_in_order(intervals, steps):
    found = [0]
    while found[-1] < intervals.total_steps:
        found.append(intervals.next_after(found[-1]))
    assert found[1:] == steps


@pytest.mark.parametrize(
    "intervals",
    [
        Intervals(60, 4, 6, 10),
        Intervals(50, 7, 7, 14),
        Intervals(9, 20, 20, 20),
        Intervals(9, 4, 4, 8, frozenset({1, 4, 9, 12})),
    ],
)
def test_ends_of_intervals_are_counted_as_they_come(intervals):
    met, found = [0], 0
    while met[-1] < intervals.total_steps:
        met.append(intervals.next_after(met[-1]))
    for step in range(intervals.total_steps + 1):
        found += step in met[1:]
        assert intervals.count(step) == found


def test_ends_of_intervals_of_a_long_run_are_counted_without_being_listed():
    assert Intervals(10**15, 1, 1, 1).count(10**15) == 10**15


@pytest.mark.slow_on_tensorflow
def test_loop_makes_exactly_the_steps_and_logs_each_border(model, records, tmp_path):
    lines, scored = [], []

    def evaluate(follow):
        scored.append(int(keras.ops.convert_to_numpy(model.optimizer.iterations)))
        return {"score": len(scored)}

    seconds = run(model, records, tmp_path / "run", Intervals(10, 4, 3, 5), evaluate, lines.append)
    # TensorFlow runs a step too many at the end of data of unknown size; dropout seeds would show it as well.
    assert int(keras.ops.convert_to_numpy(model.optimizer.iterations)) == 10
    seeds = [v for v in model.non_trainable_variables if v.path.endswith("seed_generator_state")]
    draws = [int(keras.ops.convert_to_numpy(seed.value)[1]) for seed in seeds]
    # On PyTorch attention draws for each group of rows, as padding is left out.
    attention = 10 * GROUPS if keras.backend.backend() == "torch" else 10
    assert draws == [10, attention, 10, 10]
    assert [line["step"] for line in lines] == [3, 4, 5, 6, 8, 9, 10]
    assert read_log(tmp_path / "run") == lines
    assert scored == [3, 6, 9, 10]
    assert [line.get("score") for line in lines] == [1, None, None, 2, None, 3, 4]
    assert lines[-1]["elapsed_seconds"] == pytest.approx(seconds, abs=0.01)  # rounded to 0.01
    assert [path.name for path in sorted((tmp_path / "run" / "checkpoints").iterdir())] == [
        "step-00000005",
        "step-00000010",
    ]


@pytest.mark.any_backend
def test_loop_logs_the_mean_loss_of_an_interval_alone(model, records, tmp_path):
    lines = []
    run(model, records, tmp_path / "run", Intervals(6, 1, 6, 6), report=lines.append)
    twin_lines = []
    seed_everything(1)
    twin = make_pretrainer(make_tiny_config().model, 50)
    twin.compile(optimizer=adamw(0.01, 100, 2))
    run(twin, records, tmp_path / "twin", Intervals(6, 3, 6, 6), report=twin_lines.append)
    losses = [line["loss"] for line in lines]
    # Means of three float32 losses near 5.
    assert twin_lines[0]["loss"] == pytest.approx(np.mean(losses[:3]), abs=2e-6)
    assert twin_lines[1]["loss"] == pytest.approx(np.mean(losses[3:]), abs=2e-6)


@pytest.mark.any_backend
def test_loop_stops_on_sigterm_and_goes_on(model, records, tmp_path):
    folder, lines = tmp_path / "run", []

    def stop_once(line):
        lines.append(line)
        if line["step"] == 4:
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Interrupted, match="Stopped at step 4; run the same command again"):
        run(model, records, folder, Intervals(8, 2, 8, 8), report=stop_once)
    assert signal.getsignal(signal.SIGTERM) == before
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["step-00000004"]
    seed_everything(2)
    twin = make_pretrainer(make_tiny_config().model, 50)
    twin.compile(optimizer=adamw(0.01, 100, 2))
    run(twin, records, folder, Intervals(8, 2, 8, 8), report=lines.append)
    assert [line["step"] for line in lines] == [2, 4, 6, 8]
    assert read_log(folder) == lines
    assert lines[2]["elapsed_seconds"] > lines[1]["elapsed_seconds"]


@pytest.mark.any_backend
def test_loop_goes_on_within_an_interval_that_an_earlier_version_saved(model, records, tmp_path):
    def stop(follow):
        os.kill(os.getpid(), signal.SIGTERM)
        return {"batches": len(list(follow([1])))}

    folder, lines, intervals = tmp_path / "run", [], Intervals(4, 4, 4, 4)
    with pytest.raises(Interrupted):
        run(model, records, folder, intervals, stop)
    saved = Checkpoints(folder / "checkpoints", {"run": 1})
    step, progress = saved.find()
    progress["stretch"] = progress.pop("interval")
    saved.save(model, step, progress)
    run(model, records, folder, intervals, report=lines.append)
    assert [(line["step"], line["loss"]) for line in lines] == [(4, progress["stretch"]["logs"]["loss"])]


@pytest.mark.any_backend
def test_loop_finishes_when_stopped_at_its_last_step(model, records, tmp_path):
    def stop(line):
        os.kill(os.getpid(), signal.SIGTERM)

    run(model, records, tmp_path / "run", Intervals(2, 2, 2, 2), report=stop)
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-00000002"]


@pytest.mark.any_backend
def test_loop_refuses_a_loss_that_is_no_number(model, records, tmp_path):
    def poison(line):
        model.get_layer("nsp").bias.assign(np.array([np.nan, 0.0], "float32"))

    with pytest.raises(ValueError, match="loss must be a number. Received: nan by step 4. Lower the learning rate"):
        run(model, records, tmp_path / "run", Intervals(6, 2, 6, 6), report=poison)
    assert not (tmp_path / "run" / "checkpoints").exists()
    assert [line["step"] for line in read_log(tmp_path / "run")] == [2]


@pytest.mark.any_backend
def test_loop_refuses_a_score_that_is_no_number(model, records, tmp_path):
    with pytest.raises(ValueError, match="dev_loss must be a number. Received: inf by step 2"):
        run(model, records, tmp_path / "run", Intervals(2, 2, 2, 2), lambda follow: {"dev_loss": float("inf")})
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_log_is_rewound_over_work_that_was_lost(tmp_path):
    for step in (2, 4, 6):
        append_log(tmp_path, {"step": step, "loss": step / 2})
    with open(tmp_path / "log.jsonl", "a") as file:
        file.write('{"step": 8, "lo')  # the line at which a kill came
    assert [line["step"] for line in read_log(tmp_path)] == [2, 4, 6]
    rewind_log(tmp_path, 4)
    append_log(tmp_path, {"step": 5})
    assert read_log(tmp_path) == [{"step": 2, "loss": 1.0}, {"step": 4, "loss": 2.0}, {"step": 5}]
    rewind_log(tmp_path, 0)
    assert read_log(tmp_path) == []


def test_follower_lets_few_steps_wait_for_the_device(model):
    class Metric:
        """As of jax: a number that is not there yet."""

        def __init__(self, step):
            self.step = step

        def block_until_ready(self):
            waited.append((self.step, len(made)))

    waited, made = [], []
    follower = StepFollower(model, Interval(0, 0), (), lambda: False, None)
    for step in range(7):
        made.append(step)
        follower.on_train_batch_end(step, {"loss": Metric(step)})
    assert waited == [(0, 5), (1, 6), (2, 7)]


def test_follower_stops_between_steps_of_several_batches(model):
    calls = []
    callback = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda batch, logs: calls.append(("begin", batch)),
        on_train_batch_end=lambda batch, logs: calls.append(("end", batch)),
    )
    interval = Interval(6, 7)  # one step was done before a restart
    follower = StepFollower(model, interval, (callback,), lambda: True, None, batches_per_step=3)
    stops = []
    for batch in range(6):
        model.stop_training = False
        follower.on_train_batch_begin(batch)
        follower.on_train_batch_end(batch, {"loss": 1.0})
        stops.append((interval.step, model.stop_training))
    assert stops == [(7, False), (7, False), (8, True), (8, False), (8, False), (9, True)]
    assert calls == [("begin", 1), ("end", 1), ("begin", 2), ("end", 2)]
