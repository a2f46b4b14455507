"""Make the initializers of weight matrices."""

import keras


def truncated_normal(initializer_range: float = 0.02):
    """Return a new normal cut at two deviations, as google-research/bert has it for all weights.

    A Keras initializer draws the same values each time it is called, so no two variables may share one.

    Args:
        initializer_range: standard deviation before the cut; after it, it is 0.88 of that.
    """
    return keras.initializers.TruncatedNormal(mean=0.0, stddev=initializer_range)


def normal(initializer_range: float = 0.02):
    """Return a new normal, standard deviation `initializer_range`, as transformers has it for all weights.

    For the head of a task: the smaller it starts, the later the encoder learns from it (benchmarks/head_size.py).
    """
    return keras.initializers.RandomNormal(mean=0.0, stddev=initializer_range)


def lora_uniform(shape, dtype=None):
    """Return the first matrix of a LoRA, (inputs, rank): uniform up to the inverse root of the inputs, as peft has it.

    Source: microsoft/LoRA, loralib/layers.py, `kaiming_uniform_(lora_A, a=sqrt(5))`.
    """
    return keras.initializers.VarianceScaling(1 / 3, "fan_in", "uniform")(shape, dtype)
