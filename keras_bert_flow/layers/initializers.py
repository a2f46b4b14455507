"""Make the initializer of every weight matrix."""

import keras


def truncated_normal(initializer_range: float = 0.02):
    """Return a new truncated normal, standard deviation `initializer_range`.

    A Keras initializer draws the same values each time it is called, so no two variables may share one.
    """
    return keras.initializers.TruncatedNormal(mean=0.0, stddev=initializer_range)
