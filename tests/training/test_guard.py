"""Steps that are not finite: seen on the device, named or left out, and never saved or published."""

import json
from functools import partial
from itertools import islice

import keras
import numpy as np
import pytest
from keras import ops
from safetensors.numpy import load_file

from keras_bert_flow.cli import explain
from keras_bert_flow.console.interrupts import USER_ERROR
from keras_bert_flow.training.loop.checkpoints import Checkpoints
from keras_bert_flow.training.loop.logs import read_log
from keras_bert_flow.training.loop.train import Intervals, StepSize, train
from keras_bert_flow.training.optimizers import guard
from keras_bert_flow.training.optimizers.adam import make_guarded_optimizer, make_optimizer
from keras_bert_flow.training.optimizers.guard import GuardedOptimizer
from keras_bert_flow.training.pretraining import pretrain as module
from keras_bert_flow.training.pretraining import pretrain as pretraining
from tests.oracles.tiny_records import make_tiny_config, write_tiny_records

STEPS = {"total_steps": 9, "log_every_steps": 3, "evaluate_every_steps": 9, "checkpoint_every_steps": 2}
NUMBERS = ("loss", "mlm_loss", "nsp_loss", "mlm_accuracy", "nsp_accuracy")


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    return write_tiny_records(tmp_path_factory.mktemp("guard") / "records")


def make_weights():
    values = np.random.default_rng(1).normal(size=(4, 3)).astype("float32")
    return [keras.Variable(values, name="kernel"), keras.Variable(values[0], name="bias")]


def draw_gradients(batches):
    rng = np.random.default_rng(2)
    return [[rng.normal(size=shape).astype("float32") for shape in ((4, 3), (3,))] for _ in range(batches)]


def feed(optimizer, weights, gradients):
    for gradient in gradients:
        optimizer.apply([ops.convert_to_tensor(part) for part in gradient], weights)


def to_numpy(variables):
    return [np.asarray(ops.convert_to_numpy(variable.value)) for variable in variables]


@pytest.mark.first_form_compiled
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("kind", ["adamw", "bert_adam", "lamb"])
@pytest.mark.parametrize("precision", ["float32", "mixed_float16"])
def test_step_left_out_leaves_everything_as_it_was(kind, parts, precision):
    settings = (kind, keras.optimizers.schedules.PolynomialDecay(0.1, 9), 0.1, 0.5)
    gradients = draw_gradients(6 * parts)
    plain, plain_weights = make_optimizer(*settings), make_weights()
    plain.build(plain_weights)
    for step in (0, 1, 4, 5):
        batches = gradients[step * parts : (step + 1) * parts]
        feed(plain, plain_weights, [[np.mean(part, axis=0) for part in zip(*batches, strict=True)]])
    guarded = make_guarded_optimizer(*settings, accumulate_batches=parts, max_skipped_steps=2, precision=precision)
    weights = make_weights()
    guarded.build(weights)
    for number, (kernel, bias) in enumerate(gradients):
        damage = {2: np.inf, 3: np.nan}.get(number // parts, 0.0) if number % parts == 0 else 0.0
        scale = guarded.check().get("loss_scale", 1.0)
        feed(guarded, weights, [[kernel * scale, bias * scale + damage]])
    assert (int(guarded.iterations), guarded.steps) == (4, 6)
    found = to_numpy([*weights, *guarded.inner_optimizer.variables])
    for values, wanted in zip(found, to_numpy([*plain_weights, *plain.variables]), strict=True):
        np.testing.assert_allclose(values, wanted, rtol=2e-6)  # the sum of two halves, and their mean
    facts = {"skipped_steps": 2} | ({"loss_scale": 2.0**13} if precision == "mixed_float16" else {})
    assert guarded.check() == facts
    guarded.reset()
    assert guarded.check() == {name: {"skipped_steps": 0, "loss_scale": 2.0**15}[name] for name in facts}


def test_first_failure_is_named():
    optimizer, weights = GuardedOptimizer(make_optimizer("adamw", 0.1)), make_weights()
    optimizer.build(weights)
    gradients = draw_gradients(5)
    gradients[2][1][0] = np.inf
    gradients[4][0][:] = np.nan
    feed(optimizer, weights, gradients[:2])
    assert optimizer.check() == {}
    feed(optimizer, weights, gradients[2:])
    with pytest.raises(ValueError, match=r"the gradients of 1 of 2 weights \(the first is bias\) at step 3\. Lower"):
        optimizer.check()


def test_scale_grows_after_good_steps_and_falls_at_an_overflow(monkeypatch):
    monkeypatch.setattr(guard, "GROWTH_STEPS", 3)
    optimizer, weights = make_guarded_optimizer("adamw", 0.1, precision="mixed_float16"), make_weights()
    optimizer.build(weights)
    scales = []
    for number, gradient in enumerate(draw_gradients(9)):
        feed(optimizer, weights, [[part * (np.inf if number == 4 else 1) for part in gradient]])
        scales.append(np.log2(optimizer.check()["loss_scale"]))
    assert scales == [15, 15, 16, 16, 15, 15, 15, 16, 16]
    assert float(ops.convert_to_numpy(optimizer.scale_loss(ops.convert_to_tensor(2.0)))) == 2**17


def test_what_no_scale_helps_is_an_error():
    optimizer, weights = make_guarded_optimizer("adamw", 0.1, precision="mixed_float16"), make_weights()
    optimizer.build(weights)
    feed(optimizer, weights, [[part * np.nan for part in gradient] for gradient in draw_gradients(15)])
    assert optimizer.check() == {"skipped_steps": 15, "loss_scale": 1.0}
    feed(optimizer, weights, [[part * np.nan for part in gradient] for gradient in draw_gradients(1)])
    with pytest.raises(ValueError, match="NaN or infinity in the loss at step 16"):
        optimizer.check()


def test_optimizer_that_accumulates_by_itself_cannot_be_skipped():
    with pytest.raises(ValueError, match="must not accumulate batches itself. Received: gradient_accumulation_steps=3"):
        GuardedOptimizer(make_optimizer("adamw", 0.1, accumulate_batches=3), max_skipped_steps=1)


def test_optimizer_comes_back_from_its_configuration():
    optimizer = make_guarded_optimizer("lamb", 0.1, max_skipped_steps=4, precision="mixed_float16")
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(optimizer))
    assert again.get_config() == optimizer.get_config()


@pytest.mark.parametrize("max_skipped_steps", [0, 2])
def test_infinite_gradient_of_a_finite_loss_is_seen(tmp_path, max_skipped_steps):
    """The root of 0 is 0, and its slope infinite."""
    inputs = keras.Input((2,))
    outputs = ops.sqrt(keras.layers.Dense(1, kernel_initializer="ones", use_bias=False)(inputs))
    model = keras.Model(inputs, outputs)
    model.compile(make_guarded_optimizer("adamw", 1e-3, max_skipped_steps=max_skipped_steps), "mse")
    rows = np.ones((8, 4, 2), "float32")
    rows[4] = 0

    def read(step):
        return ((row, np.ones((4, 1), "float32")) for row in rows)

    def run():
        intervals, checkpoints = Intervals(8, 8, 8, 8), Checkpoints(tmp_path / "checkpoints", {})
        return train(model, read, intervals, tmp_path, checkpoints, lambda follow: {}, StepSize(1), lines.append)

    lines = []
    if max_skipped_steps:
        run()
        assert lines[0]["skipped_steps"] == 1 and int(model.optimizer.iterations) == 7
    else:
        with pytest.raises(ValueError, match="must be finite. Received: NaN or infinity in the .* at step 5"):
            run()
        assert lines == [] and not (tmp_path / "checkpoints").exists()


@pytest.mark.parametrize("precision", ["float32", "mixed_float16"])
def test_advice_is_that_of_the_stage(precision):
    optimizer, weights = make_guarded_optimizer("adamw", 0.1, precision=precision, advice="Do this."), make_weights()
    for _ in range(20):  # in float16 the scale is halved first
        optimizer.apply([weight * np.nan for weight in weights], weights)
    with pytest.raises(ValueError, match=r"at step [0-9]+\. Do this\.$"):
        optimizer.check()


def damage_batches(monkeypatch, wanted):
    """Make the weights of some batches infinite; they are numbered from 0 over the run."""
    make = module.pretraining_dataset

    def make_damaged(records, batch_size, seed, start_step, *arguments, accumulate_batches, **options):
        make_from = partial(make, records, batch_size, seed, accumulate_batches=accumulate_batches, **options)
        batches = list(islice(make_from(0, *arguments), 9 * accumulate_batches))
        bad = {batches[number][0]["token_ids"].tobytes() for number in wanted}  # Keras reads some batches twice

        def damage(batch):
            x, y, weights = batch
            factor = np.float32(np.inf if x["token_ids"].tobytes() in bad else 1)
            return x, y, {name: weight * factor for name, weight in weights.items()}

        return make_from(start_step, *arguments).map(damage)

    monkeypatch.setattr(module, "pretraining_dataset", make_damaged)


def checkpoints_of(output):
    (folder,) = output.parent.glob(f".{output.name}*/checkpoints")
    return sorted(path for path in folder.glob("step-*"))


@pytest.mark.first_form
@pytest.mark.any_backend
@pytest.mark.parametrize("parts", [1, 2])
def test_run_stops_at_the_step_and_keeps_what_was_good(records, tmp_path, monkeypatch, parts):
    config = make_tiny_config(**STEPS, batch_size=4, accumulate_batches=parts)
    output, lines = tmp_path / "out", []
    with monkeypatch.context() as patch:
        damage_batches(patch, {4 * parts})  # of step 5, in its first part
        with pytest.raises(ValueError, match="NaN or infinity in the loss at step 5. Lower the learning") as raised:
            pretraining.pretrain(config, records, output, lines.append)
    assert explain(raised.value) == USER_ERROR
    assert str(raised.value).endswith("pretraining.non_finite=skip leaves such steps out.")
    assert [line["step"] for line in lines] == [2, 3, 4]
    assert not output.exists()
    saved = checkpoints_of(output)
    assert [path.name for path in saved] == ["step-00000002", "step-00000004"]
    assert all(np.isfinite(values).all() for path in saved for values in load_file(path / "state.safetensors").values())
    pretraining.pretrain(config, records, output, lines.append)  # the batches are whole again, and the run goes on
    assert [line["step"] for line in lines] == [2, 3, 4, 6, 8, 9]


@pytest.mark.slow_compiled
@pytest.mark.first_form
@pytest.mark.parametrize("parts", [pytest.param(1, marks=pytest.mark.any_backend), 2])
@pytest.mark.slow_on_tensorflow
def test_run_skips_steps_and_counts_them(records, tmp_path, monkeypatch, parts):
    config = make_tiny_config(**STEPS, batch_size=4, accumulate_batches=parts, non_finite="skip", max_skipped_steps=2)
    damage_batches(monkeypatch, {3 * parts, 4 * parts, 7 * parts})
    output = pretraining.pretrain(config, records, tmp_path / "out", lambda line: None)
    log = read_log(output)
    assert [line["step"] for line in log] == [2, 3, 4, 6, 8, 9]
    assert [line["skipped_steps"] for line in log] == [0, 0, 1, 2, 3, 3]
    lines = [line for line in log if "loss" in line]
    assert len(log) - len(lines) == (parts == 1)  # the line of step 4 alone; of its two parts, one was whole
    assert all(0 < line["loss"] < 10 and np.isfinite([line[name] for name in NUMBERS]).all() for line in lines)
    metrics = json.loads((output / "metrics.json").read_text())
    assert (metrics["steps"], metrics["skipped_steps"]) == (9, 3)
    model = load_file(output / "model" / "model.safetensors")
    assert all(np.isfinite(values).all() for values in model.values())


@pytest.mark.any_backend
@pytest.mark.parametrize("fault", ["rate", "weight", "batches"])
def test_run_skips_no_more_in_a_row_than_it_may(records, tmp_path, monkeypatch, fault):
    settings = STEPS | {"non_finite": "skip", "max_skipped_steps": 2, "batch_size": 4}
    if fault == "rate":
        settings |= {"learning_rate": 1e38, "warmup_steps": 0}
    elif fault == "weight":
        make = pretraining.make_pretrainer

        def make_damaged(*arguments):
            model = make(*arguments)
            variable = model.trainable_variables[0]
            variable.assign(ops.convert_to_numpy(variable.value) * np.nan)
            return model

        monkeypatch.setattr(pretraining, "make_pretrainer", make_damaged)
    else:
        damage_batches(monkeypatch, set(range(9)))
    step = "step [34]" if fault == "rate" else "step 3"  # the first step of a huge rate is finite still
    output = tmp_path / "out"
    with pytest.raises(ValueError, match=f"at {step}, the last of 3 such in a row|Weights must be numbers"):
        pretraining.pretrain(make_tiny_config(**settings), records, output, lambda line: None)
    assert not output.exists()
