"""Convert a Grain dataset to `tf.data` on TensorFlow, and check batches on the host on every backend."""

import copy
import types
from collections.abc import Callable
from typing import Any

import keras
import numpy as np


def take_batches(batches: Any, has_one_width: bool = False) -> Any:
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

    def describe(values: np.ndarray) -> Any:
        widths = values.shape[1:] if has_one_width else [None] * (values.ndim - 1)
        return tensorflow.TensorSpec([None, *widths], values.dtype)

    signature = keras.tree.map_structure(describe, next(iter(batches)))
    return without_autotuning(tensorflow.data.Dataset.from_generator(lambda: iter(batches), output_signature=signature))


def without_autotuning(dataset: Any) -> Any:
    """Disable the autotuning of a `tf.data.Dataset`.

    There is nothing to tune, since Grain has its own threads. On two cores autotuning doubled the step time of two in
    five calls of `fit`, for the whole call: `benchmarks/tensorflow_reading.py`.
    """
    import tensorflow

    options = tensorflow.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


# Check batches in the memory of the host when they are read, in every form that `keras.Model.fit` takes.


def as_host_array(values: Any) -> np.ndarray | None:
    """Return values in the memory of the host as an array, without a copy where possible; None for others."""
    if values is None or isinstance(values, np.ndarray):
        return values
    kind = type(values)
    if kind.__module__.partition(".")[0] == "torch":
        return values.detach().numpy() if values.device.type == "cpu" else None
    if isinstance(values, list | tuple | int | float) or kind.__module__.partition(".")[0] == "pandas":
        return np.asarray(values)
    return None


def check_source(x: Any, y: Any, sample_weight: Any, check: Callable[[Any, Any, Any], None]) -> Any:
    """Check arrays now, and return batches such that each is checked when it is read.

    Args:
        x, y, sample_weight: as for `keras.Model.fit`.
        check: called with each (x, y, sample_weight).
    Returns:
        What takes the place of `x`.
    """
    import grain

    def look(batch: Any) -> Any:
        check(*keras.utils.unpack_x_y_sample_weight(batch))
        return batch

    if isinstance(x, grain.IterDataset | grain.MapDataset):
        return x.map(look)
    if isinstance(x, types.GeneratorType):
        return (look(batch) for batch in x)
    if isinstance(x, keras.utils.PyDataset):
        return _CheckedDataset(x, look)
    module = type(x).__module__.partition(".")[0]
    if module == "tensorflow" and hasattr(x, "element_spec"):
        # A distributed dataset cannot be mapped; its batches were made on the host by whoever distributes them.
        return _check_tensorflow(x, look) if hasattr(x, "map") else x
    if module == "torch" and hasattr(x, "collate_fn"):
        collate, loader = x.collate_fn, copy.copy(x)
        loader.collate_fn = lambda rows: look(collate(rows))
        return loader
    check(_on_host(x), _on_host(y), _on_host(sample_weight))
    return x


def _on_host(values: Any) -> Any:
    """Return arrays that are given all at once as NumPy, also from a device: one wait for all steps."""

    def convert(value: Any) -> Any:
        is_there = value is None or as_host_array(value) is not None
        return value if is_there or not keras.ops.is_tensor(value) else keras.ops.convert_to_numpy(value)

    return keras.tree.map_structure(convert, values)


class _CheckedDataset(keras.utils.PyDataset):
    def __init__(self, dataset: keras.utils.PyDataset, look: Callable) -> None:
        super().__init__(dataset.workers, dataset.use_multiprocessing, dataset.max_queue_size)
        self._dataset, self._look = dataset, look

    @property
    def num_batches(self) -> int | None:
        return self._dataset.num_batches

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        return self._look(self._dataset[index])

    def on_epoch_begin(self) -> None:
        self._dataset.on_epoch_begin()

    def on_epoch_end(self) -> None:
        self._dataset.on_epoch_end()


def _check_tensorflow(dataset: Any, look: Callable) -> Any:
    """Check in the input pipeline, which runs on the host."""
    import tensorflow

    def check(*batch: Any) -> Any:
        batch = batch[0] if len(batch) == 1 else batch
        flat = tensorflow.nest.flatten(batch)

        def run(*arrays: np.ndarray) -> np.int32:
            look(tensorflow.nest.pack_sequence_as(batch, list(arrays)))
            return np.int32(0)

        done = tensorflow.numpy_function(run, flat, tensorflow.int32)
        with tensorflow.control_dependencies([done]):
            return tensorflow.nest.map_structure(tensorflow.identity, batch)

    return dataset.map(check)
