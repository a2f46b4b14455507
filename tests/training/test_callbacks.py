"""Keras callbacks of the user over pre-training and fine-tuning: Keras' own, and one that writes all down."""

import csv

import keras
import pytest

from keras_bert_flow.backends.runtime import seed_everything
from keras_bert_flow.data.pretraining import pretraining_dataset
from keras_bert_flow.data.pretraining_records import PretrainingRecords
from keras_bert_flow.training.loop.checkpoints import Checkpoints
from keras_bert_flow.training.loop.logs import Interrupted, read_log
from keras_bert_flow.training.loop.train import Intervals, StepSize, train
from keras_bert_flow.training.optimizers.adam import adamw
from keras_bert_flow.training.pretraining.pretrain import pretrain
from keras_bert_flow.training.pretraining.pretrainers import make_pretrainer
from tests.oracles.tiny_records import make_tiny_config, write_tiny_records
from tests.training.pretrain_child import arrange

pytestmark = pytest.mark.any_backend

SETTINGS = {"total_steps": 9, "log_every_steps": 3, "evaluate_every_steps": 6, "checkpoint_every_steps": 5}
EPOCHS = [(0, 3), (3, 5), (5, 6), (6, 9)]


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    return write_tiny_records(tmp_path_factory.mktemp("callbacks") / "records")


class Diary(keras.callbacks.Callback):
    """Write down every call, and end the run at one."""

    def __init__(self, end_at=None):
        super().__init__()
        self.entries, self.lines, self.losses = [], [], []
        self.end_at = end_at

    def note(self, *entry):
        self.entries.append(entry)
        if entry == self.end_at:
            self.model.stop_training = True

    def on_train_begin(self, logs=None):
        self.note("begin", self.model.name, self.params["epochs"])

    def on_train_end(self, logs=None):
        self.note("end")

    def on_epoch_begin(self, epoch, logs=None):
        self.note("epoch begin", epoch)

    def on_epoch_end(self, epoch, logs=None):
        self.lines.append(logs)
        self.note("epoch end", epoch)

    def on_train_batch_begin(self, batch, logs=None):
        self.note("batch begin", batch)

    def on_train_batch_end(self, batch, logs=None):
        self.losses.append(logs["loss"])
        self.note("batch end", batch)


def list_batches(first, end):
    return [(f"batch {moment}", batch) for batch in range(first, end) for moment in ("begin", "end")]


def list_calls(epochs):
    calls = []
    for number, (first, last) in enumerate(epochs):
        calls += [("epoch begin", number), *list_batches(0, last - first), ("epoch end", number)]
    return calls


def run(records, output, *callbacks, **settings):
    return pretrain(
        make_tiny_config(**SETTINGS | settings), records, output, lambda line: None, callbacks=list(callbacks)
    )


def test_callbacks_are_called_at_every_step_and_border(records, tmp_path):
    diary, seen = Diary(), []
    csv_logger = keras.callbacks.CSVLogger(str(tmp_path / "log.csv"))
    plain = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append((epoch, logs["loss"])))
    output = run(records, tmp_path / "out", diary, csv_logger, plain)
    assert diary.entries == [("begin", "bert_pretrainer", 4), *list_calls(EPOCHS), ("end",)]
    log = read_log(output)
    assert diary.lines == log
    assert seen == list(enumerate(line["loss"] for line in log))
    # Means since the line before: the last of each interval is what the log says.
    lasts = [float(diary.losses[last - 1]) for _, last in EPOCHS]
    assert lasts == pytest.approx([line["loss"] for line in log], rel=1e-6)
    with open(tmp_path / "log.csv") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["mlm_loss"]) for row in rows] == [line["mlm_loss"] for line in log]


def test_callbacks_do_not_change_the_model(records, tmp_path):
    folders = run(records, tmp_path / "with", Diary()), run(records, tmp_path / "without")
    one, other = ((folder / "model" / "model.safetensors").read_bytes() for folder in folders)
    assert one == other


@pytest.mark.parametrize(
    ("moment", "steps"), [(("batch end", 1), [2]), (("epoch end", 1), [3, 5]), (("epoch end", 3), [3, 5, 6, 9])]
)
@pytest.mark.first_form
def test_stop_training_ends_the_run_and_publishes_it(records, tmp_path, moment, steps):
    diary = Diary(end_at=moment)
    output = run(records, tmp_path / "out", diary)
    assert diary.entries[-1] == ("end",)
    log = read_log(output)
    assert [line["step"] for line in log] == steps
    metrics = (output / "metrics.json").read_text()
    assert f'"steps": {steps[-1]},' in metrics and "masked_lm_loss" in metrics
    shorter = run(records, tmp_path / "shorter", Stopper(steps[-1]))
    assert (output / "model" / "model.safetensors").read_bytes() == (
        shorter / "model" / "model.safetensors"
    ).read_bytes()


class Stopper(keras.callbacks.Callback):
    """End a run after some steps, counted by hand."""

    def __init__(self, steps):
        super().__init__()
        self.steps = steps

    def on_train_batch_end(self, batch, logs=None):
        self.steps -= 1
        if not self.steps:
            self.model.stop_training = True


def test_run_that_a_callback_ended_is_not_gone_on_with(records, tmp_path):
    """A kill between the last checkpoint and the published folder must not train on."""
    config = make_tiny_config().model
    data = PretrainingRecords(records)
    lines = []
    for callback in (Stopper(4), Stopper(100)):
        seed_everything(1)
        model = make_pretrainer(config, 50)
        model.compile(optimizer=adamw(0.01, 100, 2))
        train(
            model,
            lambda step: pretraining_dataset(data, 4, 1, step),
            Intervals(9, 3, 6, 5),
            tmp_path,
            Checkpoints(tmp_path / "checkpoints", {}),
            lambda follow: {},
            StepSize(64),
            lines.append,
            callbacks=[callback],
        )
        assert [line["step"] for line in lines] == [3, 4]
        assert int(model.optimizer.iterations) == 4


@pytest.mark.slow
def test_interrupted_run_goes_on_in_the_epoch_that_was_broken_off(records, tmp_path, monkeypatch):
    first, second = Diary(), Diary()
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        arrange("step:8", patch.setattr)
        run(records, tmp_path / "out", first)
    begin = ("begin", "bert_pretrainer", 4)
    assert first.entries == [begin, *list_calls(EPOCHS[:3]), ("epoch begin", 3), *list_batches(0, 2), ("end",)]
    run(records, tmp_path / "out", second)
    assert second.entries == [begin, ("epoch begin", 3), *list_batches(2, 3), ("epoch end", 3), ("end",)]


def test_run_that_is_ended_and_interrupted_at_once_stays_ended(records, tmp_path, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        arrange("held_out:2", patch.setattr)
        run(records, tmp_path / "out", Stopper(2))
    output = run(records, tmp_path / "out", Stopper(100))
    assert [line["step"] for line in read_log(output)] == [2]


def test_early_stopping_reads_held_out_figures(records, tmp_path):
    settings = {"learning_rate": 1e-9, "evaluate_every_steps": 1, "log_every_steps": 1}  # nothing gets better by 1
    stopping = keras.callbacks.EarlyStopping("held_out_masked_lm_loss", min_delta=1.0, patience=2, mode="min")
    output = run(records, tmp_path / "out", stopping, **settings)
    assert [line["step"] for line in read_log(output)] == [1, 2, 3]
