"""Let batches of several widths through to TensorFlow."""

import keras


def accept_any_width(batches):
    """Return a Grain data set so that `fit` takes batches of any width from it; anything else is returned as it is.

    Keras tells TensorFlow the shapes of all batches by the first two: where these are of one width, the first batch of
    another one is an error. What is returned there says of no axis how long it is.
    """
    if keras.backend.backend() != "tensorflow":
        return batches
    import grain
    import tensorflow

    if not isinstance(batches, grain.IterDataset):
        return batches
    signature = keras.tree.map_structure(
        lambda values: tensorflow.TensorSpec([None] * values.ndim, values.dtype), next(iter(batches))
    )
    return tensorflow.data.Dataset.from_generator(lambda: iter(batches), output_signature=signature)
