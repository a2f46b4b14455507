"""TensorBoard's event file of a run, read by TensorFlow: the same steps and numbers as log.jsonl, over any restart."""

import numpy as np
import pytest

from keras_bert_flow.training.loop.logs import EVENTS_FILE, EventFile, Interrupted, append_log, read_log, rewind_log
from keras_bert_flow.training.pretraining.pretrain import pretrain
from tests.oracles.tiny_records import make_tiny_config, write_tiny_records
from tests.training.pretrain_child import SETTINGS, arrange

pytestmark = pytest.mark.any_backend

LINES = [
    {"step": 3, "loss": 4.5, "tokens_per_second": 123_456, "elapsed_seconds": 1.25},
    {"step": 6, "loss": 4.25, "held_out_masked_lm_loss": 4.125, "tokens_per_second": 99, "elapsed_seconds": 2.5},
    {"step": 7, "loss": 1e-7, "tokens_per_second": 1e300, "elapsed_seconds": 3.75},
]


def read_events(folder):
    """Read (wall time, step, {tag: value}) of every event by TensorFlow's reader, its header first."""
    tensorflow = pytest.importorskip("tensorflow")
    events = tensorflow.compat.v1.train.summary_iterator(str(folder / EVENTS_FILE))
    header, *others = events
    assert header.file_version == "brain.Event:2"
    return header.wall_time, [
        (event.wall_time, event.step, {value.tag: value.simple_value for value in event.summary.value})
        for event in others
    ]


def as_events(lines, started_at):
    """Say what the file must hold: float32 values."""
    with np.errstate(over="ignore"):  # infinite there
        return [
            (
                started_at + line["elapsed_seconds"],
                line["step"],
                {name: float(np.float32(value)) for name, value in line.items() if name != "step"},
            )
            for line in lines
        ]


def test_events_are_the_lines_of_the_log(tmp_path):
    events = EventFile(tmp_path)
    for line in LINES:
        append_log(tmp_path, line)
        events.append(line)
    started_at, found = read_events(tmp_path)
    assert found == as_events(LINES, started_at)


def test_events_are_rewound_with_the_log(tmp_path):
    events = EventFile(tmp_path)
    for line in LINES:
        append_log(tmp_path, line)
        events.append(line)
    started_at, _ = read_events(tmp_path)
    with open(tmp_path / EVENTS_FILE, "r+b") as file:
        file.truncate(file.seek(0, 2) - 5)  # a kill came while it was written
    rewind_log(tmp_path, 6)
    events = EventFile(tmp_path)
    events.append({"step": 8, "loss": 1.0, "elapsed_seconds": 5.0})
    again, found = read_events(tmp_path)
    assert again == started_at
    assert found == as_events([*LINES[:2], {"step": 8, "loss": 1.0, "elapsed_seconds": 5.0}], started_at)


def test_words_and_runs_of_a_line_are_no_scalars(tmp_path):
    EventFile(tmp_path).append(LINES[0] | {"run": "pretrained/seed-1"})
    started_at, found = read_events(tmp_path)
    assert found == as_events(LINES[:1], started_at)


def test_tensorboard_shows_the_run(tmp_path):
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = EventFile(tmp_path)
    for line in LINES:
        events.append(line)
    run = loader.EventAccumulator(str(tmp_path)).Reload()  # finds the file by its name
    assert sorted(run.Tags()["scalars"]) == ["elapsed_seconds", "held_out_masked_lm_loss", "loss", "tokens_per_second"]
    points = [(point.step, point.value) for point in run.Scalars("loss")]
    assert points == [(line["step"], pytest.approx(line["loss"], rel=1e-7)) for line in LINES]


@pytest.mark.parametrize("tensorboard", [True, False])
@pytest.mark.first_form
def test_stopped_run_has_every_step_once(tmp_path, tensorboard):
    records = write_tiny_records(tmp_path / "records")
    config, output = make_tiny_config(**SETTINGS | {"total_steps": 9}, tensorboard=tensorboard), tmp_path / "out"
    for moment in ("step:5", "held_out:8"):
        with pytest.MonkeyPatch.context() as patch, pytest.raises(Interrupted):
            arrange(moment, patch.setattr)
            pretrain(config, records, output, lambda line: None)
    pretrain(config, records, output, lambda line: None)
    log = read_log(output)
    assert [line["step"] for line in log] == [3, 6, 7, 8, 9]
    if not tensorboard:
        assert not (output / EVENTS_FILE).exists()
        return
    started_at, found = read_events(output)
    assert found == as_events(log, started_at)
