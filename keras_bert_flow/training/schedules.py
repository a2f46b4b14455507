"""Learning rates that rise from 0 to a peak, then fall or stay."""

import math

import keras
from keras import ops

LINEAR, COSINE, CONSTANT = "linear", "cosine", "constant"


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class WarmupDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Rise from 0 to the peak in `warmup_steps`, then fall to 0 at `total_steps`, or stay.

    google-research/bert measures the fall from step 0, which makes a small jump where the warm-up ends; here it is
    measured from that end, as others do.

    Args:
        peak: highest rate.
        warmup_steps: steps in which the rate rises.
        total_steps: step from which the rate is 0; of no meaning to `constant`.
        decay: `linear` (Devlin et al. 2019, appendix A.2), `cosine` (half a wave; Loshchilov and Hutter 2017,
            equation 5, without restarts) or `constant`.
    """

    def __init__(self, peak, warmup_steps, total_steps, decay=LINEAR):
        if decay not in (LINEAR, COSINE, CONSTANT):
            raise ValueError(f"`decay` must be one of {LINEAR}, {COSINE}, {CONSTANT}. Received: decay={decay!r}.")
        self.peak = peak
        self.warmup_steps = warmup_steps
        self.total_steps = total_steps
        self.decay = decay

    def __call__(self, step):
        step = ops.cast(step, "float32")
        rising = step / self.warmup_steps if self.warmup_steps else 1.0
        return self.peak * ops.minimum(rising, self._fall(step))

    def _fall(self, step):
        if self.decay == CONSTANT:
            return 1.0
        left = (self.total_steps - step) / max(1, self.total_steps - self.warmup_steps)
        left = ops.clip(left, 0.0, 1.0)
        return left if self.decay == LINEAR else 0.5 - 0.5 * ops.cos(math.pi * left)

    def get_config(self):
        names = ("peak", "warmup_steps", "total_steps", "decay")
        return {name: getattr(self, name) for name in names}
