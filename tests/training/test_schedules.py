"""The learning rate over time, against numbers worked out by hand and against transformers."""

import keras
import numpy as np
import pytest
import torch
import transformers

from keras_bert_flow.training.optimizers.schedules import AccumulatedSteps, WarmupDecay

TRANSFORMERS = {
    "linear": transformers.get_linear_schedule_with_warmup,
    "cosine": transformers.get_cosine_schedule_with_warmup,
    "trapezoid": lambda optimizer, warmup, total: transformers.get_wsd_schedule(
        optimizer, warmup, total // 5, num_training_steps=total, decay_type="linear"
    ),
    "trapezoid_sqrt": lambda optimizer, warmup, total: transformers.get_wsd_schedule(
        optimizer, warmup, total // 5, num_training_steps=total, decay_type="1-sqrt"
    ),
    "constant": lambda optimizer, warmup, _: transformers.get_constant_schedule_with_warmup(optimizer, warmup),
}


def rate(schedule, step):
    return float(keras.ops.convert_to_numpy(schedule(step)))


@pytest.mark.parametrize(
    ("warmup_steps", "decay", "rates"),
    [
        (4, "linear", {0: 0.0, 1: 0.25, 2: 0.5, 4: 1.0, 5: 0.9375, 12: 0.5, 19: 0.0625, 20: 0.0, 25: 0.0}),
        (0, "linear", {0: 1.0, 1: 0.95, 10: 0.5, 20: 0.0, 25: 0.0}),
        (20, "linear", {0: 0.0, 10: 0.5, 19: 0.95}),
        (4, "cosine", {0: 0.0, 2: 0.5, 4: 1.0, 8: 0.853553, 12: 0.5, 20: 0.0, 25: 0.0}),
        (4, "trapezoid", {0: 0.0, 2: 0.5, 4: 1.0, 16: 1.0, 17: 0.75, 19: 0.25, 20: 0.0, 25: 0.0}),
        (4, "trapezoid_sqrt", {2: 0.5, 4: 1.0, 16: 1.0, 17: 0.5, 18: 0.292893, 20: 0.0, 25: 0.0}),
        (4, "constant", {0: 0.0, 2: 0.5, 4: 1.0, 12: 1.0, 20: 1.0, 25: 1.0}),
    ],
)
def test_schedule_rises_and_falls(warmup_steps, decay, rates):
    schedule = WarmupDecay(2.0, warmup_steps, 20, decay)
    found = {step: rate(schedule, step) for step in rates}
    assert found == pytest.approx({step: 2.0 * share for step, share in rates.items()}, abs=2e-6)  # float32


@pytest.mark.parametrize("warmup_steps", [0, 7])
@pytest.mark.parametrize("decay", TRANSFORMERS)
def test_schedule_equals_transformers(decay, warmup_steps):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    theirs, expected = TRANSFORMERS[decay](optimizer, warmup_steps, 50), []
    for _ in range(50):
        expected.append(theirs.get_last_lr()[0])
        optimizer.step()
        theirs.step()
    ours = WarmupDecay(0.5, warmup_steps, 50, decay)
    np.testing.assert_allclose([rate(ours, step) for step in range(50)], expected, atol=1e-6)  # ours is float32


@pytest.mark.parametrize(
    ("decay", "theirs"),
    [
        ("linear", keras.optimizers.schedules.PolynomialDecay(2.0, 20, end_learning_rate=0.0)),  # the original's own
        ("cosine", keras.optimizers.schedules.CosineDecay(2.0, 20)),
    ],
)
def test_fall_from_the_start_jumps_after_warmup(decay, theirs):
    schedule = WarmupDecay(2.0, 8, 20, decay, "start")
    found = [rate(schedule, step) for step in range(25)]
    expected = [2.0 * step / 8 if step < 8 else rate(theirs, step) for step in range(25)]
    np.testing.assert_allclose(found, expected, atol=2e-6)  # float32
    assert found[7] == pytest.approx(1.75) and found[20:] == pytest.approx([0.0] * 5, abs=1e-6)
    if decay == "linear":
        assert found[8] == pytest.approx(1.2)  # not the peak, 2


def test_constant_rate_is_the_same_from_either():
    for decay_from in ("warmup", "start"):
        schedule = WarmupDecay(2.0, 4, 20, "constant", decay_from)
        assert [rate(schedule, step) for step in (0, 2, 4, 30)] == [0.0, 1.0, 2.0, 2.0]


def test_schedule_config_round_trip():
    schedule = WarmupDecay(2.0, 4, 20, "cosine", "start")
    twin = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(schedule))
    assert twin.get_config() == {
        "peak": 2.0,
        "warmup_steps": 4,
        "total_steps": 20,
        "decay": "cosine",
        "decay_from": "start",
    }


def test_accumulated_steps_keep_the_rate_of_the_step():
    schedule = AccumulatedSteps(WarmupDecay(2.0, 2, 4), 3)
    twin = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(schedule))
    for one in (schedule, twin):
        assert [rate(one, batch) for batch in range(13)] == [0, 0, 0, 1, 1, 1, 2, 2, 2, 1, 1, 1, 0]


def test_unknown_decay_is_refused():
    with pytest.raises(ValueError, match="linear, cosine, trapezoid, trapezoid_sqrt, constant. Received: decay='step'"):
        WarmupDecay(1.0, 0, 10, "step")
    with pytest.raises(ValueError, match="`decay_from` must be one of warmup, start. Received: decay_from='end'"):
        WarmupDecay(1.0, 0, 10, "linear", "end")
