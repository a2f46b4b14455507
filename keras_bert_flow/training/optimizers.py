"""Make the optimizer of BERT: AdamW whose rate rises from 0, then falls."""

from keras_bert_flow.models.defaults import make_adamw
from keras_bert_flow.training.schedules import LINEAR, WarmupDecay


def adamw(learning_rate, total_steps, warmup_steps=0, weight_decay=0.01, clip_norm=1.0, decay=LINEAR):
    """Return AdamW with warm-up; biases and layer norms are not decayed.

    Args:
        learning_rate: the peak.
        total_steps: steps until the rate is 0.
        warmup_steps: steps in which it rises.
        weight_decay: decoupled decay.
        clip_norm: largest global norm of the gradient.
        decay: how the rate falls: `linear`, `cosine` or `constant`.
    Source: Devlin et al. 2019, appendix A.2.
    """
    return make_adamw(WarmupDecay(learning_rate, warmup_steps, total_steps, decay), weight_decay, clip_norm)
