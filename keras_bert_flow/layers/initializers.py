"""Initializers of weight matrices."""

import keras


def truncated_normal(initializer_range: float = 0.02):
    """Return a new normal initializer truncated at two standard deviations, as for all weights in google-research/bert.

    A Keras initializer draws the same values at each call, so no two variables may share one.

    Args:
        initializer_range: standard deviation before truncation; truncated, it is 0.88 of that.
    """
    return keras.initializers.TruncatedNormal(mean=0.0, stddev=initializer_range)


def normal(initializer_range: float = 0.02):
    """Return a new normal initializer with standard deviation `initializer_range`, as for all weights in transformers.

    For task heads: the smaller their initial weights, the later the encoder learns from them (benchmarks/head_size.py).
    """
    return keras.initializers.RandomNormal(mean=0.0, stddev=initializer_range)


def lora_uniform(shape, dtype=None):
    """Initialise the first LoRA matrix, (inputs, rank): uniform within ±1 / sqrt(inputs), as in peft.

    Source: microsoft/LoRA, loralib/layers.py, `kaiming_uniform_(lora_A, a=sqrt(5))`.
    """
    return keras.initializers.VarianceScaling(1 / 3, "fan_in", "uniform")(shape, dtype)
