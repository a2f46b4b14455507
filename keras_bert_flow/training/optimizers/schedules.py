"""Learning rates that rise from 0 to a peak, then fall or stay."""

import math

import keras
from keras import ops

LINEAR, COSINE, TRAPEZOID, CONSTANT = DECAYS = "linear", "cosine", "trapezoid", "constant"
LAST_SHARE = 0.2  # of the steps, in which a trapezoid falls: Hägele et al. 2024, section 4
WARMUP, START = "warmup", "start"


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class WarmupDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Rise from 0 to the peak in `warmup_steps`, then fall to 0 at `total_steps`, or stay.

    google-research/bert measures the fall from step 0, which makes a small jump where the warm-up ends; here it is
    measured from that end, as others do, unless told otherwise.

    Args:
        peak: highest rate.
        warmup_steps: steps in which the rate rises.
        total_steps: step from which the rate is 0; of no meaning to `constant`.
        decay: `linear` (Devlin et al. 2019, appendix A.2), `cosine` (half a wave; Loshchilov and Hutter 2017,
            equation 5, without restarts), `trapezoid` (it stays, then falls linearly in the last fifth of the steps;
            Hägele et al. 2024, arXiv:2405.18392) or `constant`.
        decay_from: where the fall is measured from: the end of the `warmup`, or the `start` (google-research/bert,
            optimization.py, `create_optimizer`). Of no meaning to `trapezoid` and `constant`.
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
        return self.peak * ops.where(step < self.warmup_steps, rising, self._fall(step))

    def _fall(self, step):
        if self.decay == CONSTANT:
            return ops.ones_like(step)
        left = ops.clip((self.total_steps - step) / self._count_falling(), 0.0, 1.0)
        return 0.5 - 0.5 * ops.cos(math.pi * left) if self.decay == COSINE else left

    def _count_falling(self):
        if self.decay == TRAPEZOID:
            return max(1, round(LAST_SHARE * self.total_steps))
        return max(1, self.total_steps - (self.warmup_steps if self.decay_from == WARMUP else 0))

    def get_config(self):
        names = ("peak", "warmup_steps", "total_steps", "decay", "decay_from")
        return {name: getattr(self, name) for name in names}


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class AccumulatedSteps(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule of steps for an optimizer that accumulates several batches into each.

    Keras asks a schedule by the number of the batch, although `optimizer.iterations` is that of the step.

    Args:
        schedule: what it would be without accumulation.
        batches: batches of a step.
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
