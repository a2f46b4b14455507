"""Pre-train in a process that is one of several or has several devices, and leave what it saw as a file.

What it is told is one JSON argument: `records`, `output`, `settings` (of `pretraining`), `dropout_rate`, `model`,
`distribution`, `devices` (virtual ones of this process), `stop_at` (a step at which the last of `processes`, or the one
that `victim` names, gets `signal`, or SIGTERM), `last` (settings of the last process only), `initial_model`, `damaged`
(the tokens of a record whose weights are to be infinite) and `seen`, the folder for what each process saw.
"""

import json
import os
import signal
import sys
import threading
from pathlib import Path

import keras
import numpy as np

from keras_bert_flow.cli import explain
from keras_bert_flow.console.interrupts import PROCESS_LOST, leave_at_once
from keras_bert_flow.data.pretraining_records import PretrainingRecords
from keras_bert_flow.training.loop.steps import StepFollower
from keras_bert_flow.training.pretraining import pretrain as module
from keras_bert_flow.training.pretraining.pretrain import pretrain
from tests.oracles.tiny_records import make_tiny_config

SHAPE = {"hidden_dim": 16, "num_heads": 4, "intermediate_dim": 32, "num_layers": 1}


def main(told):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun sends it to all where one ends; training listens anyway
    make_devices(told.get("devices", 1))
    seen = {"records": set(), "rows": set(), "weights": {}, "seeds": {}, "steps": []}
    is_last = find_rank() == told.get("processes", 1) - 1
    is_stopped = find_rank() == told["victim"] if "victim" in told else is_last
    follow(seen, told.get("stop_at") if is_stopped else None, signal.Signals[told.get("signal", "SIGTERM")])
    if "damaged" in told:
        PretrainingRecords.__getitem__ = damage(PretrainingRecords.__getitem__, told["damaged"])
    settings = told["settings"] | (told.get("last", {}) if is_last else {})
    rates = dict.fromkeys(("dropout_rate", "attention_dropout_rate"), told.get("dropout_rate", 0.0))
    config = make_tiny_config(SHAPE | rates | told.get("model", {}), **settings)
    distribution = type(config.distribution)(**told.get("distribution", {}))
    config = config.model_copy(update={"distribution": distribution})
    places = [Path(told[name]) for name in ("records", "output")]
    try:
        pretrain(config, *places, seen["steps"].append, initial_model=told.get("initial_model"))
        status = 0
    except Exception as error:
        seen["message"], status = str(error), explain(error)
    seen = seen | {"records": sorted(seen["records"]), "rows": sorted(seen["rows"]), "status": status}
    (Path(told["seen"]) / f"{find_rank()}.json").write_text(json.dumps(seen), encoding="utf-8")
    if status == PROCESS_LOST:
        leave_at_once(status)  # as the command does
    sys.exit(status)


def find_rank():
    """Return the number of this process, as the environment has it."""
    task = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {})
    return int(os.environ.get("RANK") or os.environ.get("KERAS_DISTRIBUTION_PROCESS_ID") or task.get("index", 0))


def make_devices(count):
    if keras.backend.backend() == "tensorflow" and count > 1:
        import tensorflow as tf

        devices = [tf.config.LogicalDeviceConfiguration()] * count
        tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], devices)


def damage(read, token_ids):
    """Make the weights of the predictions infinite in the record with these tokens."""

    def read_damaged(self, index):
        features = read(self, index)
        is_damaged = features["input_ids"].tolist() == token_ids
        return features | {"masked_lm_weights": features["masked_lm_weights"] + np.float32(np.inf if is_damaged else 0)}

    return read_damaged


def follow(seen, stop_at, stop_signal):
    """Note which training records are read, how many rows each device gets, and where the weights lie."""
    read, find_unigram_loss = PretrainingRecords.__getitem__, module.find_unigram_loss
    counting = threading.local()  # other threads read ahead meanwhile

    def note_and_read(self, index):
        if self._files[0].path.name.startswith("train") and not hasattr(counting, "frequencies"):
            seen["records"].add(index)
        return read(self, index)

    def find_without_notes(records):
        """Count token frequencies: the first process reads records of all for that, which are no training."""
        counting.frequencies = True
        try:
            return find_unigram_loss(records)
        finally:
            del counting.frequencies

    PretrainingRecords.__getitem__, module.find_unigram_loss = note_and_read, find_without_notes
    score = module.score_pretraining

    def note_and_score(model, *arguments):
        seen["weights"] = {variable.path: describe_place(variable.value) for variable in model.trainable_variables}
        seen["seeds"] = {
            variable.path: read_replicas(variable) for variable in model.variables if "seed" in variable.path
        }
        return score(model, *arguments)

    module.score_pretraining = note_and_score
    end_step = StepFollower.on_train_batch_end

    def note_and_end_step(self, batch, logs=None):
        if stop_at == self.interval.step + 1:
            os.kill(os.getpid(), stop_signal)
        end_step(self, batch, logs)

    StepFollower.on_train_batch_end = note_and_end_step
    if keras.backend.backend() == "jax":
        import jax

        place = jax.make_array_from_process_local_data

        def place_and_note(*arguments):
            array = place(*arguments)
            seen["rows"] |= {shard.data.shape[0] for shard in array.addressable_shards}
            return array

        jax.make_array_from_process_local_data = place_and_note
    else:
        call = keras.losses.Loss.__call__

        def note_and_call(self, y_true, *arguments):
            if y_true.shape[0] is not None:
                seen["rows"].add(int(y_true.shape[0]))
            return call(self, y_true, *arguments)

        keras.losses.Loss.__call__ = note_and_call


def describe_place(value):
    """Return the shape on one device and how many devices there are: of this process, or all that jax knows."""
    if keras.backend.backend() == "jax":
        return [list(value.addressable_shards[0].data.shape), len(value.sharding.device_set)]
    if keras.backend.backend() == "tensorflow":
        return [list(value.shape), len(getattr(value, "values", (value,)))]
    return [list(value.shape), 1]


def read_replicas(variable):
    parts = getattr(variable.value, "values", None) if keras.backend.backend() == "tensorflow" else None
    values = [variable.value] if parts is None else parts
    return [np.asarray(keras.ops.convert_to_numpy(value)).tolist() for value in values]


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
