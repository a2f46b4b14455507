"""What SIGTERM and Ctrl-C do to training, before it and after it."""

import json
import os
import signal
import sys
import threading

import keras
import pytest

from keras_bert_flow import cli
from keras_bert_flow.console import interrupts
from keras_bert_flow.console import interrupts as console_interrupts
from keras_bert_flow.training.loop.train import NOTICE, stop_requests
from keras_bert_flow.training.pretraining import pretrain as module
from tests.oracles.tiny_records import make_tiny_config, write_tiny_records
from tests.patience import PATIENCE_SECONDS
from tests.training.pretrain_child import act_before, ask_to_stop

TINY = [
    f"--set={section}.{name}={json.dumps(value)}"
    for section, values in make_tiny_config(total_steps=2, warmup_steps=1).model_dump(exclude_none=True).items()
    if section in ("model", "pretraining")
    for name, value in values.items()
] + ["--set=records.sequence_length=16", "--set=finetuning.sequence_length=16"]


def send(number):
    signal.raise_signal(number)  # to this thread; one of another library could get what is sent to the process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_requests_to_stop_are_noted_however_often(number, capfd):  # SIGHUP silences a terminal; these are files
    before = signal.getsignal(number)
    with stop_requests() as requested:
        assert not requested.is_set()
        send(number)
        assert requested.is_set()
        send(number)
    assert signal.getsignal(number) is before


def test_second_interrupt_stops_at_once(capfd):
    with pytest.raises(KeyboardInterrupt), stop_requests() as requested:
        send(signal.SIGINT)
        assert requested.is_set()
        assert capfd.readouterr().err.encode() == NOTICE
        send(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_interrupt_after_sigterm_stops_at_once():
    with pytest.raises(KeyboardInterrupt), stop_requests():
        send(signal.SIGTERM)
        send(signal.SIGINT)


def test_handler_of_somebody_else_stays():
    caught = []
    before = signal.signal(signal.SIGINT, lambda *_: caught.append(True))
    try:
        with stop_requests() as requested:
            send(signal.SIGINT)
        assert caught == [True] and not requested.is_set()
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_leave_signals_alone():
    found = []

    def look():
        with stop_requests():
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join(PATIENCE_SECONDS)
    assert found == [signal.getsignal(signal.SIGTERM)]


@pytest.mark.any_backend
def test_command_that_is_stopped_outside_of_training_says_run_again(tmp_path, monkeypatch, capfd):
    records, output = write_tiny_records(tmp_path / "records"), tmp_path / "out"
    arguments = ["kbf", "pretrain", "--records", str(records), "--output", str(output), *TINY]
    monkeypatch.setenv("KERAS_BACKEND", keras.backend.backend())
    monkeypatch.setattr(sys, "argv", arguments)
    before = signal.getsignal(signal.SIGTERM)
    for name in ("PretrainingRecords", "save_model_directory"):  # before the first step, and after the last one
        with monkeypatch.context() as patch, pytest.raises(SystemExit) as caught:
            act_before(patch.setattr, module, name, lambda *_, **__: True, ask_to_stop)
            patch.setattr(interrupts, "_is_leaving", False)  # the process of the tests goes on, with its children
            patch.setattr(interrupts, "_mute", lambda: None)
            patch.setattr(interrupts, "end_children", lambda: None)
            patch.setattr(os, "_exit", sys.exit)
            cli.main()
        assert caught.value.code == console_interrupts.CHECKPOINTED
        assert "run the same command again to go on" in capfd.readouterr().err
        assert not output.exists()
        assert signal.getsignal(signal.SIGTERM) is before
    cli.main()
    assert (output / "model" / "model.safetensors").is_file()
