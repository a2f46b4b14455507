"""Hand the batches of a Grain data set to TensorFlow: of any width, and with nothing that slows down the steps."""

import keras


def take_batches(batches, has_one_width=False):
    """Return a Grain data set as `fit` on TensorFlow should read it; anything else is returned as it is.

    Keras tells TensorFlow the shapes of all batches by the first two: where these are of one width, the first batch of
    another one is an error. What is returned there says of no axis how long it is, or, where all batches have one
    width, of rows only.
    """
    if keras.backend.backend() != "tensorflow":
        return batches
    import grain
    import tensorflow

    if not isinstance(batches, grain.IterDataset):
        return batches

    def describe(values):
        widths = values.shape[1:] if has_one_width else [None] * (values.ndim - 1)
        return tensorflow.TensorSpec([None, *widths], values.dtype)

    signature = keras.tree.map_structure(describe, next(iter(batches)))
    return without_autotuning(tensorflow.data.Dataset.from_generator(lambda: iter(batches), output_signature=signature))


def without_autotuning(dataset):
    """Return a `tf.data.Dataset` that does not look for the best number of threads while it is read.

    There is nothing to choose here, as Grain has threads of its own. On two cores the search made the steps of two in
    five calls of `fit` take twice as long, all of such a call: `benchmarks/tensorflow_reading.py`.
    """
    import tensorflow

    options = tensorflow.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)
