"""Convert a Grain dataset to `tf.data` for `fit` on TensorFlow: batches of any width, without autotuning."""

import keras


def take_batches(batches, has_one_width=False):
    """Convert a Grain dataset to a `tf.data.Dataset` on TensorFlow; return anything else unchanged.

    Keras infers the shapes of all batches from the first two. If those have the same width, a later batch of another
    width is an error. The dataset returned here leaves every axis unknown, or only the batch axis if all batches have
    one width.
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
    """Disable the autotuning of a `tf.data.Dataset`.

    There is nothing to tune, since Grain has its own threads. On two cores autotuning doubled the step time of two in
    five calls of `fit`, for the whole call: `benchmarks/tensorflow_reading.py`.
    """
    import tensorflow

    options = tensorflow.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)
