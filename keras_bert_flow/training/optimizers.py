"""Make the optimizer of BERT: AdamW whose rate rises from 0, then falls to 0 in straight lines."""

import keras
from keras import ops

from keras_bert_flow.models.defaults import make_adamw


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class WarmupLinearDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Rise from 0 to the peak in `warmup_steps`, then fall to 0 at `total_steps`.

    google-research/bert measures the fall from step 0, which makes a small jump where the warm-up ends; here it is
    measured from that end, as others do.
    """

    def __init__(self, peak, warmup_steps, total_steps):
        self.peak = peak
        self.warmup_steps = warmup_steps
        self.total_steps = total_steps

    def __call__(self, step):
        step = ops.cast(step, "float32")
        rising = step / max(1, self.warmup_steps)
        falling = (self.total_steps - step) / max(1, self.total_steps - self.warmup_steps)
        return self.peak * ops.maximum(0.0, ops.minimum(rising if self.warmup_steps else 1.0, falling))

    def get_config(self):
        return {"peak": self.peak, "warmup_steps": self.warmup_steps, "total_steps": self.total_steps}


def adamw(learning_rate, total_steps, warmup_steps=0, weight_decay=0.01, clip_norm=1.0):
    """Return AdamW with warm-up and linear decay; biases and layer norms are not decayed.

    Args:
        learning_rate: the peak.
        total_steps: steps until the rate is 0.
        warmup_steps: steps in which it rises.
        weight_decay: decoupled decay.
        clip_norm: largest global norm of the gradient.
    Source: Devlin et al. 2019, appendix A.2.
    """
    return make_adamw(WarmupLinearDecay(learning_rate, warmup_steps, total_steps), weight_decay, clip_norm)
