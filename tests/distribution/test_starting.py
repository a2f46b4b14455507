"""What a backend or the devices cannot is refused in one line, before anything is trained."""

import json
import logging
from dataclasses import replace

import keras
import pytest

from keras_bert_flow.config.pretraining import DistributionConfig, SecondPhaseConfig
from keras_bert_flow.distribution import starting
from keras_bert_flow.distribution.cluster import SINGLE, check_batches
from keras_bert_flow.distribution.starting import check_count, start_cluster
from keras_bert_flow.layers.shape import EncoderShape
from keras_bert_flow.training.pretraining.pretrain import pretrain
from tests.oracles.tiny_records import make_tiny_config, write_tiny_records

BACKEND = keras.backend.backend()
SHAPE = EncoderShape(vocabulary_size=50, num_layers=1, num_heads=2, hidden_dim=12, intermediate_dim=24)


def start(shape=SHAPE, distribution=None, **pretraining):
    config = make_tiny_config(**pretraining)
    config = config.model_copy(update={"distribution": DistributionConfig(**(distribution or {}))})
    return start_cluster(config, shape)


def name_two_processes(monkeypatch):
    """Say that there are two, without starting the other."""
    address = {"cluster": {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(address))
    monkeypatch.setenv("WORLD_SIZE", "2")
    if BACKEND == "jax":
        import jax

        for name in ("process_count", "device_count"):
            monkeypatch.setattr(jax, name, lambda: 2)


def test_one_device_is_taken_as_before():
    assert start() is SINGLE
    assert start(distribution={"kind": "single"}) is SINGLE


def test_one_device_is_no_data_parallel():
    wanted = "each device needs a process" if BACKEND == "torch" else "must find several devices. Received: one"
    with pytest.raises(ValueError, match=wanted):
        start(distribution={"kind": "data_parallel"})


@pytest.mark.skipif(BACKEND == "jax", reason="jax can")
def test_model_parallel_needs_jax():
    with pytest.raises(ValueError, match=f"model_parallel` needs jax. Received: backend={BACKEND}. Choose data_par"):
        start(distribution={"kind": "model_parallel", "model_parallel": 2})


@pytest.mark.skipif(BACKEND != "jax", reason="jax only")
def test_copies_must_divide_devices_and_heads():
    distribution = {"kind": "model_parallel", "model_parallel": 2}
    with pytest.raises(ValueError, match="must divide the devices of one process. Received: model_parallel=2, 1 dev"):
        start(distribution=distribution)
    with pytest.raises(ValueError, match="must divide the model's num_heads. Received: model_parallel=2, num_heads=3"):
        start(replace(SHAPE, num_heads=3), distribution)


def test_tpu_is_refused_where_there_is_none():
    wanted = "needs jax or tensorflow. Received: backend=torch" if BACKEND == "torch" else "must find a TPU. Received"
    with pytest.raises(ValueError, match=wanted) as caught:
        start(distribution={"kind": "tpu"})
    assert "\n" not in str(caught.value)


def test_more_devices_than_there_are_are_refused():
    wanted = "each device needs a process" if BACKEND == "torch" else "must be there. Received: devices=64, found 1"
    with pytest.raises(ValueError, match=wanted):
        start(distribution={"kind": "data_parallel", "devices": 64})
    assert check_count(None, 8) == check_count(8, 8, processes=2) == 8
    assert check_count(3, 8) == 3
    with pytest.raises(ValueError, match="must be all that the processes have. Received: devices=3, found 8"):
        check_count(3, 8, processes=2)


def test_batches_must_divide():
    check_batches(make_tiny_config(batch_size=12, accumulate_batches=2), 3)
    with pytest.raises(ValueError, match="batch_size=10 for 4 devices. Try batch_size=8, or set distribution.devices"):
        check_batches(make_tiny_config(batch_size=10), 4)
    with pytest.raises(ValueError, match="batch_size=12 for 4 devices and accumulate_batches=2. Try batch_size=16"):
        check_batches(make_tiny_config(batch_size=12, accumulate_batches=2), 4)


def test_single_is_refused_in_several_processes(monkeypatch):
    name_two_processes(monkeypatch)
    with pytest.raises(ValueError, match="`distribution.kind: single` is for one process. Received: 2, by"):
        start(distribution={"kind": "single"})


@pytest.mark.skipif(BACKEND != "torch", reason="torch only")
def test_keras_that_averages_by_itself_is_refused(monkeypatch):
    name_two_processes(monkeypatch)
    monkeypatch.setattr(keras, "__version__", "3.16.0")
    with pytest.raises(ValueError, match="Several torch processes need Keras 3.15.*Received: Keras 3.16.0"):
        start(batch_size=8)


@pytest.mark.skipif(BACKEND != "torch", reason="torch only")
def test_devices_that_one_process_leaves_out_are_named(monkeypatch, caplog):
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    with caplog.at_level(logging.WARNING, starting.__name__):
        assert start() is SINGLE
    assert "One of 4 devices is used; `torchrun --nproc-per-node 4` takes all." in caplog.text


@pytest.mark.skipif(BACKEND == "torch", reason="torch can")
def test_accumulation_is_refused_where_it_would_be_wrong(monkeypatch):
    name_two_processes(monkeypatch)
    if BACKEND == "jax":
        wanted = "With jax, `accumulate_batches` needs a single process. Received: accumulate_batches=2, 2 processes"
    else:
        wanted = "Under TensorFlow's strategies Keras cannot accumulate batches. Received: .*accumulate_batches=2"
        # The strategy would wait for the other process; accumulation is looked at first.
    with pytest.raises(ValueError, match=wanted):
        start(distribution={"kind": "data_parallel"}, batch_size=8, accumulate_batches=2)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="the others can")
@pytest.mark.parametrize("setting", [{"precision": "mixed_float16"}, {"non_finite": "skip"}])
def test_what_a_strategy_cannot_leave_out_is_refused(monkeypatch, setting):
    name_two_processes(monkeypatch)
    ((name, value),) = setting.items()
    with pytest.raises(ValueError, match=f"Under TensorFlow's strategies .* Received: pretraining.{name}={value}"):
        start(batch_size=8, **setting)


@pytest.mark.skipif(BACKEND == "tensorflow", reason="the strategy would wait for the other process")
def test_batches_of_the_second_phase_are_looked_at_before_the_first(monkeypatch):
    name_two_processes(monkeypatch)
    config = make_tiny_config(batch_size=8)
    second = SecondPhaseConfig(total_steps=3, warmup_steps=1, sequence_length=16, batch_size=7)
    with pytest.raises(ValueError, match="Received: second_phase.batch_size=7 for 2 devices. Try batch_size=8"):
        start_cluster(config.model_copy(update={"second_phase": second}), SHAPE)


def test_refusal_leaves_nothing_behind(tmp_path):
    records = write_tiny_records(tmp_path / "records")
    distribution = DistributionConfig(kind="model_parallel", model_parallel=5)
    config = make_tiny_config().model_copy(update={"distribution": distribution})
    with pytest.raises(ValueError, match="model_parallel"):
        pretrain(config, records, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["records"]
