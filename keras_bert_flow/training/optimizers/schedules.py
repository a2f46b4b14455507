"""Learning rate schedules with warm-up and decay."""

import math
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_bert_flow.backends.values import read_variable

LINEAR, COSINE, TRAPEZOID, TRAPEZOID_SQRT, CONSTANT = DECAYS = (
    "linear",
    "cosine",
    "trapezoid",
    "trapezoid_sqrt",
    "constant",
)
LAST_SHARE = 0.2  # share of the steps in which a trapezoid decays: Hägele et al. 2024, section 4
WARMUP, START = "warmup", "start"


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class WarmupDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up from 0 to the peak in `warmup_steps`, then decay to 0 at `total_steps`, or a constant rate.

    google-research/bert measures the decay from step 0, which makes a small jump at the end of warm-up. By default it
    is measured from the end of warm-up here, as elsewhere.

    Args:
        peak: peak learning rate.
        warmup_steps: number of warm-up steps.
        total_steps: step from which the rate is 0; ignored by `constant`.
        decay: `linear` (Devlin et al. 2019, appendix A.2), `cosine` (half a wave; Loshchilov and Hutter 2017,
            equation 5, without restarts), `trapezoid` (constant, then a linear decay in the last fifth of the steps;
            Hägele et al. 2024, arXiv:2405.18392), `trapezoid_sqrt` (the same with 1 - √x of the share x of these steps
            that is done; section 4.1 there) or `constant`.
        decay_from: where the decay is measured from: the end of the `warmup`, or the `start` (google-research/bert,
            optimization.py, `create_optimizer`). Ignored by both trapezoids and `constant`.
    Example:
        >>> schedule = kbf.WarmupDecay(peak=1.0, warmup_steps=10, total_steps=110)
        >>> [round(float(schedule(step)), 2) for step in (0, 5, 10, 60, 110)]
        [0.0, 0.5, 1.0, 0.5, 0.0]
    """

    def __init__(self, peak, warmup_steps, total_steps, decay=LINEAR, decay_from=WARMUP):
        if decay not in DECAYS:
            raise ValueError(f"`decay` must be one of {', '.join(DECAYS)}. Received: decay={decay!r}.")
        if decay_from not in (WARMUP, START):
            raise ValueError(f"`decay_from` must be one of {WARMUP}, {START}. Received: decay_from={decay_from!r}.")
        self.peak = peak
        self.warmup_steps = warmup_steps
        self.total_steps = total_steps
        self.decay = decay
        self.decay_from = decay_from

    def __call__(self, step):
        step = ops.cast(step, "float32")
        rising = step / max(1, self.warmup_steps)
        if self.decay == CONSTANT:
            falling = ops.ones_like(step)
        else:
            falling_steps = self.total_steps - (self.warmup_steps if self.decay_from == WARMUP else 0)
            if self.decay in (TRAPEZOID, TRAPEZOID_SQRT):
                falling_steps = round(LAST_SHARE * self.total_steps)
            falling = ops.clip((self.total_steps - step) / max(1, falling_steps), 0.0, 1.0)
            if self.decay == COSINE:
                falling = 0.5 - 0.5 * ops.cos(math.pi * falling)
            elif self.decay == TRAPEZOID_SQRT:
                falling = 1.0 - ops.sqrt(1.0 - falling)
        return self.peak * ops.where(step < self.warmup_steps, rising, falling)

    def get_config(self):
        names = ("peak", "warmup_steps", "total_steps", "decay", "decay_from")
        return {name: getattr(self, name) for name in names}


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class PacedSteps(keras.optimizers.schedules.LearningRateSchedule):
    """Learning rate schedule in which a step may count for several, for a run that has to end in time.

    The place in the schedule is begun_place + pace * (step - begun_step). These three are variables of the optimizer,
    so that a compiled step follows them and a checkpoint holds them.

    Args:
        schedule: of places.
    """

    def __init__(self, schedule):
        self.schedule = schedule
        self._numbers: list[Any] = []  # none until it is built

    def build(self, add_number):
        """Create the variables; `add_number` of an optimizer takes a name, a dtype and an initializer."""
        ones = keras.initializers.Constant(1.0)
        self._numbers = [
            add_number("begun_step", "float32", "zeros"),
            add_number("begun_place", "float32", "zeros"),
            add_number("pace", "float32", ones),
        ]

    def __call__(self, step):
        step = ops.cast(step, "float32")
        if not self._numbers:
            return self.schedule(step)
        begun_step, begun_place, pace = self._numbers
        return self.schedule(begun_place + pace * (step - begun_step))

    def find_place(self, step):
        """Return the place of a step."""
        begun_step, begun_place, pace = (float(np.asarray(read_variable(number))) for number in self._numbers)
        return begun_place + pace * (step - begun_step)

    def set_pace(self, step, place, pace):
        """Let steps count for `pace` from a step on, which is at a place."""
        for number, value in zip(self._numbers, (step, place, pace), strict=True):
            number.assign(float(value))

    def get_config(self):
        return {"schedule": keras.saving.serialize_keras_object(self.schedule)}

    @classmethod
    def from_config(cls, config):
        return cls(keras.saving.deserialize_keras_object(config["schedule"]))


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class StagedWarmup(keras.optimizers.schedules.LearningRateSchedule):
    """Learning rate that rises anew in each of several stages of equal length, then follows a schedule.

    In a stage the rate rises to the peak in a tenth of the steps, and stays there: the weights of a stage have moments
    that are still 0, though the optimizer has taken many steps.

    Args:
        schedule: of the steps after the stages, counted from 0.
        peak: learning rate of the stages.
        stage_steps: steps of a stage.
        first_steps: steps of all stages.
    Source: google-research, mobilebert/distill_util.py, `get_background_lr`, which then falls by a tenth.
    Example:
        >>> schedule = kbf.WarmupDecay(peak=1.0, warmup_steps=0, total_steps=10)
        >>> schedule = StagedWarmup(schedule, peak=1.0, stage_steps=20, first_steps=40)
        >>> [round(float(schedule(step)), 2) for step in (0, 1, 19, 20, 40, 45)]
        [0.5, 1.0, 1.0, 0.5, 1.0, 0.5]
    """

    def __init__(self, schedule, peak, stage_steps, first_steps):
        self.schedule = schedule
        self.peak = peak
        self.stage_steps = stage_steps
        self.first_steps = first_steps

    def __call__(self, step):
        step = ops.cast(step, "float32")
        place = step - ops.floor(step / self.stage_steps) * self.stage_steps
        rising = ops.minimum((place + 1.0) / max(1, self.stage_steps // 10), 1.0)
        later = self.schedule(ops.maximum(step - self.first_steps, 0.0))
        return ops.where(step < self.first_steps, self.peak * rising, later)

    def get_config(self):
        own = {name: getattr(self, name) for name in ("peak", "stage_steps", "first_steps")}
        return own | {"schedule": keras.saving.serialize_keras_object(self.schedule)}

    @classmethod
    def from_config(cls, config):
        return cls(**config | {"schedule": keras.saving.deserialize_keras_object(config["schedule"])})


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class AccumulatedSteps(keras.optimizers.schedules.LearningRateSchedule):
    """Learning rate schedule for an optimizer with gradient accumulation.

    Keras calls a schedule with the number of batches, although `optimizer.iterations` counts steps.

    Args:
        schedule: the schedule without accumulation.
        batches: number of batches per step.
    """

    def __init__(self, schedule, batches):
        self.schedule = schedule
        self.batches = batches

    def __call__(self, step):
        return self.schedule(ops.floor_divide(step, self.batches))

    def get_config(self):
        return {"schedule": keras.saving.serialize_keras_object(self.schedule), "batches": self.batches}

    @classmethod
    def from_config(cls, config):
        return cls(keras.saving.deserialize_keras_object(config["schedule"]), config["batches"])
