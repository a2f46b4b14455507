"""Recorded steps of PyTorch that are compiled, and what of them a GPU alone would run."""

import logging

import keras
import numpy as np
import pytest

import keras_bert_flow as kbf
from keras_bert_flow.backends import recorded
from keras_bert_flow.backends.fused import _draw_by_hash
from keras_bert_flow.backends.runtime import is_on_processor
from keras_bert_flow.models import reentrant
from keras_bert_flow.training.optimizers.adam import make_guarded_optimizer, make_optimizer
from tests.backends.test_recorded_steps import make_batch, make_model, train

pytestmark = pytest.mark.skipif(keras.backend.backend() != "torch", reason="the others compile their steps")


def make_dense(jit_compile):
    keras.utils.set_random_seed(1)
    inputs = keras.Input((6,))
    outputs = keras.layers.Dense(1)(keras.layers.Dense(8, activation="tanh")(inputs))
    model = reentrant.ReentrantModel(inputs, outputs)
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse", jit_compile=jit_compile)
    rng = np.random.default_rng(0)
    return model, [(rng.normal(size=(4, 6)).astype("float32"), np.ones((4, 1), "float32")) for _ in range(5)]


def run_dense(jit_compile):
    model, batches = make_dense(jit_compile)
    return [logs["loss"] for logs in train(model, batches)]


@pytest.mark.slow
def test_compiled_steps_are_those_of_eager_ones(caplog):
    with caplog.at_level(logging.INFO, "keras_bert_flow"):
        found = run_dense(True)
    assert found == pytest.approx(run_dense(False), rel=1e-6)
    ours = [record.message for record in caplog.records if record.name.startswith("keras_bert_flow")]
    kind, duration = [message for message in ours if "compiled" in message]
    assert kind == "Training steps on PyTorch: recorded and compiled."
    assert duration.startswith("Training step: compiled in")


@pytest.mark.slow
def test_compiled_pretraining_steps_change_rounding_alone(caplog):
    batches = [make_batch(seed, length=8, padding=seed % 3) for seed in range(50)]
    eager, compiled = make_model(False, dropout_rate=0.0), make_model(True, dropout_rate=0.0)
    for one, other in zip(train(eager, batches), train(compiled, batches), strict=True):
        assert other == pytest.approx(one, rel=1e-6)  # float32, sums in another order
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_step_that_is_not_compiled_runs_as_recorded(monkeypatch, caplog):
    def fail(*arguments):
        raise RuntimeError("no compiler")

    monkeypatch.setattr("torch._inductor.compile", fail)
    assert run_dense(True) == run_dense(False)
    assert [record.message for record in caplog.records if record.levelno == logging.WARNING] == [
        "A recorded step runs without being compiled: no compiler"
    ]


def test_the_first_shape_is_recorded_at_once_and_others_at_their_second_batch(monkeypatch):
    monkeypatch.setattr(recorded, "_compile", lambda graph, given: graph)
    model, batches = make_dense(True)
    counts = []
    for rows in (4, 3, 4, 3):
        x, y = batches[0]
        model.train_on_batch(x[:rows], y[:rows])
        counts.append(len(model.train_function._programs))
    assert counts == [1, 1, 1, 2]


def test_what_is_trained_is_looked_up_in_each_step(monkeypatch):
    monkeypatch.setattr(recorded, "_compile", lambda graph, given: graph)
    found = []
    for jit_compile in (False, True):
        model, batches = make_dense(jit_compile)
        train(model, batches[:2])
        model.layers[1].trainable = False
        train(model, batches[2:4])
        model.layers[1].trainable = True
        train(model, batches[4:])
        found.append([keras.ops.convert_to_numpy(weight) for weight in model.weights])
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_auto_compiles_on_a_gpu_alone(monkeypatch):
    model, _ = make_dense("auto")
    assert not model.jit_compile
    monkeypatch.setattr(reentrant, "is_on_processor", lambda: False)
    model, _ = make_dense("auto")
    assert model.jit_compile


def make_muon(model):
    return make_optimizer("muon", 1e-3, muon_options={"matrices": model.backbone.list_matrices()})


def make_turns(model):
    """Return an optimizer that trains one block after the other, two steps each, and then all weights."""
    blocks = enumerate(model.backbone.blocks)
    turns = {weight.path: (2 * layer, 2 * layer + 2) for layer, block in blocks for weight in block.weights}
    return make_guarded_optimizer("adamw", 1e-3, turns=turns)


OPTIMIZERS = {
    "adamw": lambda model: kbf.adamw(learning_rate=1e-3, warmup_steps=2, total_steps=100),
    "guarded": lambda model: make_guarded_optimizer("adamw", 1e-3),
    "lamb": lambda model: make_optimizer("lamb", 1e-3),
    "muon": make_muon,
    "turns": make_turns,
    "skipping": lambda model: make_guarded_optimizer("adamw", 1e-3, max_skipped_steps=2),
    "accumulating": lambda model: make_optimizer("adamw", 1e-3, accumulate_batches=2),
}
RECORDED = {"adamw", "guarded", "lamb", "muon", "turns"}  # the others branch by the value of a tensor


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.first_form
def test_the_optimizer_is_part_of_a_recording_for_a_gpu(name, monkeypatch):
    monkeypatch.setattr(recorded, "_compile", lambda graph, given: graph)
    monkeypatch.setattr(recorded, "is_on_processor", lambda: False)
    batches, found = [make_batch(seed) for seed in range(6)], []
    for jit_compile in (False, True):
        model = make_model(jit_compile)
        model.compile(optimizer=OPTIMIZERS[name](model), jit_compile=jit_compile)
        found.append(train(model, batches))
    for one, other in zip(*found, strict=True):
        assert other == pytest.approx(one, rel=1e-6)  # the bias correction in float32, clipping by another product
    [program] = model.train_function._programs.values()
    assert (program.optimizer is None) == (name in RECORDED)
    asked = ("_local_scalar_dense", "nonzero", "equal.default")
    assert not [node for node in program.compute.graph.nodes if any(part in str(node.target) for part in asked)]


DIFFERS = "A compiled step runs without a CUDA graph: its first replay differs from the step"


class Replays:
    """Stands for CUDA graphs where there are none: a replay computes again, with tensors that stay where they are."""

    def __init__(self, monkeypatch, shift=0.0):
        self.count, self.shift = 0, shift
        monkeypatch.setattr(recorded, "_record_graph", self.record)

    def record(self, function):
        def replay():
            self.count += 1
            return [value + self.shift for value in function()]

        return replay


def make_counting():
    import torch

    def compute(total, batch):
        total += batch.sum()
        return [total * 2]

    return compute, torch.zeros(())


@pytest.mark.parametrize(("shift", "replays"), [(0.0, 3), (1.0, 1)], ids=["same", "another"])
def test_a_graph_is_replayed_if_it_makes_the_same_step(shift, replays, monkeypatch, caplog):
    import torch

    stand_in = Replays(monkeypatch, shift)
    compute, total = make_counting()
    replayed = recorded._Replayed(compute, 1)
    found = [float(replayed(total, torch.full((2,), float(step)))[0]) for step in range(4)]
    assert found == [0.0, 4.0, 12.0, 24.0]
    assert float(total) == 12.0
    assert stand_in.count == replays
    assert [record.message for record in caplog.records] == [DIFFERS] * bool(shift)


@pytest.mark.parametrize("updates", [0, 2])
def test_a_graph_that_does_not_update_once_is_not_replayed(updates, monkeypatch, caplog):
    """Weights move by a thousandth, as in training."""
    import torch

    kernel, count = torch.ones(3, 3), torch.zeros((), dtype=torch.int32)

    def compute(kernel, count, batch):
        kernel -= 1e-3 * batch
        count += 1
        return [batch.sum()]

    def record(function):
        def replay():
            before = kernel.clone()
            found = function()
            kernel.copy_(before + updates * (kernel - before))
            return found

        return replay

    monkeypatch.setattr(recorded, "_record_graph", record)
    replayed = recorded._Replayed(compute, 2)
    for _ in range(3):
        replayed(kernel, count, torch.ones(3, 3))
    torch.testing.assert_close(kernel, torch.full((3, 3), 1 - 3e-3))
    assert int(count) == 3
    assert [record.message for record in caplog.records] == [DIFFERS]


def test_a_graph_is_recorded_again_when_a_weight_is_elsewhere(monkeypatch):
    import torch

    Replays(monkeypatch)
    compute, total = make_counting()
    replayed, batch = recorded._Replayed(compute, 1), torch.ones(1)
    for _ in range(3):
        replayed(total, batch)
    other = torch.zeros(())
    assert [float(replayed(other, batch)[0]) for _ in range(3)] == [2.0, 4.0, 6.0]
    assert float(total) == 3.0


def hash_by_numpy(count, seed):
    """Return the draws of `_draw_by_hash` in unsigned numbers."""

    def mix(x):
        with np.errstate(over="ignore"):
            x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
            x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
        return x ^ (x >> np.uint32(16))

    first, second = np.asarray(seed, "uint32")[:, None]
    numbers = np.arange((count + 1) // 2, dtype="uint32")
    key = mix(first + mix(second ^ np.uint32(0x9E3779B9)))
    return mix(mix(numbers ^ mix(first ^ mix(second))) + key).view("int16")[:count]


@pytest.mark.parametrize("seed", [[0, 0], [1234, 7], [2**31 - 1, 2**31 - 1]])
def test_draws_of_a_gpu_are_hashes(seed):
    import torch

    draws = _draw_by_hash([5, 7, 301], torch.tensor(seed, dtype=torch.int32)).numpy()
    np.testing.assert_array_equal(draws.reshape(-1), hash_by_numpy(draws.size, seed))
    # 10,535 draws of standard deviation 65536 / √12: five standard errors of their mean
    assert abs(draws.mean()) < 5 * 65536 / 12**0.5 / draws.size**0.5


@pytest.mark.gpu
@pytest.mark.skipif(keras.backend.backend() == "torch" and is_on_processor(), reason="no GPU here")
def test_a_gpu_replays_what_it_would_compute(caplog):
    batches = [make_batch(seed, length=8) for seed in range(20)]
    eager, replayed = make_model(False, dropout_rate=0.0), make_model("auto", dropout_rate=0.0)
    for one, other in zip(train(eager, batches), train(replayed, batches), strict=True):
        assert other == pytest.approx(one, rel=1e-4)  # products in TF32 where they are allowed
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
