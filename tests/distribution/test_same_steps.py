"""Twenty steps on several devices or processes are those of one, and a run goes on with another number of them."""

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file

from keras_bert_flow.console.interrupts import CHECKPOINTED
from keras_bert_flow.training.loop.logs import read_log
from keras_bert_flow.training.pretraining.pretrain import pretrain
from tests.distribution.child import SHAPE
from tests.distribution.processes import start_children
from tests.oracles.tiny_records import make_tiny_config, write_tiny_records

BACKEND = keras.backend.backend()
# A batch is one array on jax: masks are those of one device. Other backends draw them by replica.
DROPOUT_RATE = 0.1 if BACKEND == "jax" else 0.0
STEPS, BATCH_SIZE, RECORDS = 20, 8, 320  # one pass, with as many batches read ahead as there are steps
# 7 held-out records do not divide; 12 comes between two checkpoints.
SETTINGS = {
    "batch_size": BATCH_SIZE,
    "total_steps": STEPS,
    "clip_norm": 0.5,
    "log_every_steps": 1,
    "evaluate_every_steps": 10,
    "checkpoint_every_steps": 10,
    "evaluate_instances": 7,
}
STOP_AT = 12
PROCESSES, DEVICES = {"jax": (1, 8), "tensorflow": (1, 2), "torch": (2, 1)}[BACKEND]
TOLD = {"settings": SETTINGS, "dropout_rate": DROPOUT_RATE}


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    return write_tiny_records(tmp_path_factory.mktemp("distribution") / "records", train=(RECORDS,))


@pytest.fixture(scope="module")
def alone(records):
    """The run on one device, in this process."""
    return train_alone(records, records.parent / "alone")


def train_alone(records, output, dropout_rate=DROPOUT_RATE, **settings):
    rates = dict.fromkeys(("dropout_rate", "attention_dropout_rate"), dropout_rate)
    config = make_tiny_config(SHAPE | rates, **SETTINGS | settings)
    return pretrain(config, records, output, lambda line: None)


def train_in_children(records, output, name="seen", **options):
    return start_children(BACKEND, output.parent / name, **TOLD | options, records=str(records), output=str(output))


def assert_same_run(folder, expected):
    """Compare the lines of two logs and the weights."""
    lines, expected_lines = read_log(folder), read_log(expected)
    assert [line["step"] for line in lines] == [line["step"] for line in expected_lines]
    for line, expected_line in zip(lines, expected_lines, strict=True):
        assert line.keys() == expected_line.keys()
        for name in expected_line:
            if "loss" in name or "accuracy" in name:
                assert line[name] == pytest.approx(expected_line[name], abs=1e-5), (name, line["step"])
    assert_same_weights(folder, expected)


def assert_same_weights(folder, expected, tolerance=3e-5):
    """Adam divides by the size of gradients that are rounding alone; see tests/training/test_accumulation.py."""
    weights, expected_weights = (load_file(path / "model" / "model.safetensors") for path in (folder, expected))
    assert weights.keys() == expected_weights.keys()
    for name, values in expected_weights.items():
        np.testing.assert_allclose(weights[name], values, rtol=0, atol=tolerance, err_msg=name)


def assert_reads_are_shared(seen, steps=STEPS):
    """Each process reads records of its own, but for the first one, whose shape all look at."""
    parts = [set(part["records"]) - {0} for part in seen]
    assert sum(map(len, parts)) == len(set().union(*parts))
    assert all(len(part) >= steps * BATCH_SIZE // len(seen) - 1 for part in parts)


@pytest.mark.any_backend
@pytest.mark.any_backend
@pytest.mark.slow
def test_devices_train_as_one_and_one_goes_on(records, alone):
    """The last process gets SIGTERM, all stop after the same step, and one device goes on in the middle."""
    output = records.parent / "stopped"
    seen = train_in_children(records, output, "stopped-seen", processes=PROCESSES, devices=DEVICES, stop_at=STOP_AT)
    assert {part["status"] for part in seen} == {CHECKPOINTED}
    assert [line["step"] for line in seen[0]["steps"]] == list(range(1, STOP_AT + 1))
    assert all(not part["steps"] for part in seen[1:])  # one process reports
    assert {rows for part in seen for rows in part["rows"]} == {BATCH_SIZE // (PROCESSES * DEVICES)}
    assert {devices for part in seen for _, devices in part["weights"].values()} == {DEVICES}
    assert_reads_are_shared(seen, STOP_AT)
    assert_same_run(train_alone(records, output), alone)


@pytest.mark.slow
def test_devices_go_on_where_one_stopped(records, alone):
    output = records.parent / "one-first"
    seen = train_in_children(records, output, "one-first-seen", stop_at=STOP_AT)
    assert [part["status"] for part in seen] == [CHECKPOINTED]
    train_in_children(records, output, "many-next-seen", processes=PROCESSES, devices=DEVICES)
    assert_same_run(output, alone)


@pytest.mark.slow
@pytest.mark.skipif(BACKEND == "torch", reason="torch has no other form than several processes")
def test_two_processes_train_as_one(records, alone):
    output = records.parent / "processes"
    seen = train_in_children(records, output, "processes-seen", processes=2, devices=2 if BACKEND == "jax" else 1)
    assert_same_run(output, alone)
    assert_reads_are_shared(seen)
    assert {rows for part in seen for rows in part["rows"]} == {BATCH_SIZE // (4 if BACKEND == "jax" else 2)}


@pytest.mark.slow
def test_broken_interval_of_two_processes_goes_on(records, alone):
    """What is saved of its metrics is that of both, and is taken once."""
    output = records.parent / "interval"
    settings = SETTINGS | dict.fromkeys(("log_every_steps", "evaluate_every_steps", "checkpoint_every_steps"), STEPS)
    options = {"processes": 2, "settings": settings}
    seen = train_in_children(records, output, "interval-seen", **options, stop_at=16)  # they ask at multiples of 8
    assert [part["status"] for part in seen] == [CHECKPOINTED] * 2
    assert not read_log(output)
    train_in_children(records, output, "interval-again-seen", **options)
    (line,) = read_log(output)
    for name in ("loss", "mlm_loss", "nsp_loss"):
        assert line[name] == pytest.approx(np.mean([step[name] for step in read_log(alone)]), abs=1e-5), name
    assert_same_weights(output, alone)


@pytest.mark.slow
@pytest.mark.skipif(BACKEND == "jax", reason="on jax the masks are those of one device")
def test_masks_differ_by_replica_and_come_back(records):
    """Stopped within an interval, a run with dropout ends with the weights of one that was not, to the bit."""
    settings = SETTINGS | {"log_every_steps": 5}
    options = {"processes": PROCESSES, "devices": DEVICES, "settings": settings, "dropout_rate": 0.3}
    whole, broken = records.parent / "dropout", records.parent / "dropout-broken"
    seen = train_in_children(records, whole, "dropout-seen", **options)
    train_in_children(records, broken, "dropout-broken-seen", **options, stop_at=STOP_AT)
    again = train_in_children(records, broken, "dropout-again-seen", **options)
    for part in (seen, again):
        replicas = [part[0]["seeds"]] if PROCESSES == 1 else [process["seeds"] for process in part]
        for path in replicas[0]:
            states = [tuple(state) for process in replicas for state in process[path]]
            assert len({seed for seed, _ in states}) == len(states) == PROCESSES * DEVICES
            drawn = {steps for _, steps in states}
            # Attention on PyTorch draws for each group of rows of like length.
            assert drawn == {STEPS} or BACKEND == "torch" and "/attention/" in path and min(drawn) > STEPS
    assert_same_weights(broken, whole, tolerance=0)
    losses = [[line["loss"] for line in read_log(folder)] for folder in (broken, whole)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)  # the sums of replicas are saved as one, in float32


@pytest.mark.slow
@pytest.mark.skipif(BACKEND != "jax", reason="only jax shares a copy of the model between devices")
def test_two_devices_share_a_copy(records, alone):
    output = records.parent / "model-parallel"
    distribution = {"kind": "model_parallel", "model_parallel": 2}
    (seen,) = train_in_children(records, output, "model-parallel-seen", devices=8, distribution=distribution)
    assert_same_run(output, alone)
    assert seen["rows"] == [BATCH_SIZE // 4]
    hidden, wide = SHAPE["hidden_dim"], SHAPE["intermediate_dim"]
    halves = {path: shape for path, (shape, _) in seen["weights"].items()}
    block = "encoder_block_0/"
    assert halves[block + "attention/query_key_value/kernel"] == [hidden, 3 * hidden // 2]
    assert halves[block + "attention/query_key_value/bias"] == [3 * hidden // 2]
    assert halves[block + "attention/output/kernel"] == [hidden // 2, hidden]
    assert halves[block + "intermediate/kernel"] == [hidden, wide // 2]
    assert halves[block + "output/kernel"] == [wide // 2, hidden]
    assert halves["token_embedding/embeddings"] == [25, hidden]
    assert halves["mlm/bias"] == [25]
    assert halves[block + "attention_layer_norm/gamma"] == [hidden]  # not cut
    assert {devices for _, devices in seen["weights"].values()} == {8}


@pytest.mark.slow
@pytest.mark.skipif(BACKEND == "tensorflow", reason="Keras cannot accumulate under a strategy")
def test_parts_of_shares_make_the_step_of_the_whole(records, alone):
    output = records.parent / "parts"
    options = {"processes": PROCESSES, "devices": min(DEVICES, 4), "dropout_rate": 0.0}
    train_in_children(records, output, "parts-seen", **options, settings=SETTINGS | {"accumulate_batches": 2})
    assert_same_weights(output, train_alone(records, records.parent / "without-dropout", dropout_rate=0.0))
