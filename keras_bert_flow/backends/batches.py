"""Batches: converted to `tf.data` on TensorFlow, and their ids and labels checked on the host on every backend."""

import copy
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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

    signature = keras.tree.map_structure(
        lambda values: tensorflow.TensorSpec(
            [None, *(values.shape[1:] if has_one_width else [None] * (values.ndim - 1))], values.dtype
        ),
        next(iter(batches)),
    )
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


def check_source(
    x: Any, y: Any, sample_weight: Any, check: Callable[[Any, Any, Any], None], errors: list[ValueError]
) -> Any:
    """Check arrays now, and return batches such that each is checked when it is read.

    Args:
        x, y, sample_weight: as for `keras.Model.fit`.
        check: called with each (x, y, sample_weight).
        errors: gets the errors of batches, which a library may bury in its own.
    Returns:
        What takes the place of `x`.
    """
    import grain

    def look(batch: Any) -> Any:
        try:
            check(*keras.utils.unpack_x_y_sample_weight(batch))
        except ValueError as error:
            errors.append(error)
            raise
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
    check(*(keras.tree.map_structure(_on_host, given) for given in (x, y, sample_weight)))
    return x


def _on_host(value: Any) -> Any:
    """Return an array that is given all at once as NumPy, also from a device: one wait for all steps."""
    is_there = value is None or as_host_array(value) is not None
    return value if is_there or not keras.ops.is_tensor(value) else keras.ops.convert_to_numpy(value)


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


# Ids and labels.
#
# What a device does with an id that a table does not have differs: JAX returns NaN, TensorFlow takes the nearest,
# PyTorch raises or ends the process. Here it is the same one-line error on every backend, and no step waits for its
# device: only arrays in the memory of the host are looked at, once where all are given at once, else batch by batch as
# they are read.


@dataclass(frozen=True)
class Rule:
    """What the labels of an output may be.

    Attributes:
        noun: plural, for messages.
        low, high: bounds, both included; None for none.
        is_whole: whether labels are whole numbers.
        remedy: a sentence.
        is_real: bool, (batch, places): which places a label may name; None for all.
        distribution: shape of one probability per class in place of a label, without the batch axis; None if there is
            no such form.
    """

    noun: str
    low: float | None
    high: float | None
    remedy: str
    is_whole: bool = True
    is_real: np.ndarray | None = None
    distribution: tuple[int | None, ...] | None = None


def class_rule(shape: tuple[int | None, ...]) -> Rule:
    """Return the rule of labels that are class ids, or one-hot, for logits of a shape, (batch, ..., classes)."""
    count = shape[-1] or 0
    remedy = f"Number the {count:,} classes from 0; a label to leave out needs `sample_weight` 0."
    return Rule("labels", 0, count - 1, remedy, distribution=tuple(shape[1:]))


def position_rule(noun: str, is_real: np.ndarray) -> Rule:
    """Return the rule of labels that are places in a row, (batch, places)."""
    return Rule(noun, 0, is_real.shape[1] - 1, "Leave out rows whose answer was cut off.", is_real=is_real)


def check_labels(labels: Any, weights: Any, rule: Rule) -> None:
    """Raise ValueError for the first label of nonzero weight that breaks a rule; labels on a device are not read."""
    labels = as_host_array(labels)
    weights = None if weights is None else as_host_array(weights)
    if labels is None or labels.dtype == object or not labels.size:
        return
    wanted, found = rule.distribution, labels.shape[1:]
    is_distribution = wanted is not None and len(found) == len(wanted)
    if is_distribution and all(size in (other, None) for other, size in zip(found, wanted or (), strict=True)):
        rule = Rule("one-hot labels", 0, 1, "Give a probability for each class, or its number.", is_whole=False)
    elif wanted is not None and len(wanted) == 1 and found not in ((), (1,)):
        raise ValueError(
            f"Labels must be class ids, (rows,), or one-hot, (rows, {wanted[0]}). Received: the shape "
            f"{labels.shape}. Count the classes."
        )
    with np.errstate(invalid="ignore"):
        is_wrong = ~np.isfinite(labels) if labels.dtype.kind == "f" else np.zeros(labels.shape, bool)
        if rule.is_whole and labels.dtype.kind == "f":
            is_wrong |= labels != np.floor(labels)
        if rule.low is not None:
            is_wrong |= labels < rule.low
        if rule.high is not None:
            is_wrong |= labels > rule.high
    if rule.is_real is not None and len(rule.is_real) == len(labels):
        places = np.where(is_wrong, 0, labels).reshape(-1).astype(int)
        is_wrong |= ~rule.is_real[np.arange(len(places)), places].reshape(labels.shape)
    if weights is not None and is_wrong.any():
        counts = weights != 0
        if counts.size == labels.size:
            counts = counts.reshape(labels.shape)
        else:
            counts = np.broadcast_to(counts.reshape(counts.shape + (1,) * (labels.ndim - counts.ndim)), labels.shape)
        is_wrong = is_wrong & counts
    if is_wrong.any():
        place = tuple(int(axis[0]) for axis in np.nonzero(is_wrong))
        raise ValueError(
            f"The {rule.noun} must be {_describe(rule)}. Received: {labels[place]} in row {place[0]}. {rule.remedy}"
        )


def check_ids(x: Any, sizes: Mapping[str, int | None]) -> None:
    """Raise ValueError for the first input whose ids are not from 0 to its size; None is the width of the row."""
    if not isinstance(x, Mapping):
        return
    for name, size in sizes.items():
        ids = as_host_array(x.get(name))
        if ids is None or not ids.size or ids.dtype.kind not in "iuf":
            continue
        width = as_host_array(x.get("token_ids"))
        most = size if size is not None else None if width is None else width.shape[-1]
        if most and (ids.min() < 0 or ids.max() >= most):
            place = tuple(int(axis[0]) for axis in np.nonzero((ids < 0) | (ids >= most)))
            raise ValueError(
                f"`{name}` must be from 0 to {most - 1:,}. Received: {ids[place]} in row {place[0]}. "
                "Encode texts with the vocabulary of this model."
            )


def check_single_texts(x: Any) -> None:
    """Raise ValueError if a row holds several texts, for a model that says something of whole rows."""
    mask = as_host_array(x.get("padding_mask")) if isinstance(x, Mapping) else None
    if mask is not None and mask.size and mask.dtype.kind in "iuf" and mask.max() > 1:
        place = tuple(int(axis[0]) for axis in np.nonzero(mask > 1))
        raise ValueError(
            "Each row must be one text for a model that says something of whole texts. Received: a `padding_mask` of "
            f"{mask[place]} in row {place[0]}. Give each text a row, with 1 for its tokens."
        )


def _describe(rule: Rule) -> str:
    kind = "whole numbers" if rule.is_whole else "finite numbers"
    if rule.is_real is not None:
        return "the places of real tokens or choices of their rows"
    if rule.low is None:
        return kind if rule.high is None else f"{kind} up to {rule.high:,}"
    return f"{kind} from {rule.low:,} to {rule.high:,}"
