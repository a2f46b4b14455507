"""Check ids and labels of batches on the host, and turn texts and class names into them.

What a device does with an id that a table does not have differs: JAX returns NaN, TensorFlow takes the nearest, PyTorch
raises or ends the process. Here it is the same one-line error on every backend, and no step waits for its device: only
arrays in the memory of the host are looked at, once where all are given at once, else batch by batch as they are read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from keras_bert_flow.backends.batches import as_host_array


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


def tag_rule(count: int) -> Rule:
    """Return the rule of token labels, of which those below 0 are none."""
    return Rule("token labels", None, count - 1, f"Number the {count:,} tags from 0; a token without one has -100.")


def position_rule(noun: str, is_real: np.ndarray) -> Rule:
    """Return the rule of labels that are places in a row, (batch, places)."""
    return Rule(noun, 0, is_real.shape[1] - 1, "Leave out rows whose answer was cut off.", is_real=is_real)


def check_labels(labels: Any, weights: Any, rule: Rule) -> None:
    """Raise ValueError for the first label of nonzero weight that breaks a rule; labels on a device are not read."""
    labels = as_host_array(labels)
    weights = None if weights is None else as_host_array(weights)
    if labels is None or labels.dtype == object or not labels.size:
        return
    if rule.distribution is not None and _fits(labels.shape[1:], rule.distribution):
        rule = Rule("one-hot labels", 0, 1, "Give a probability for each class, or its number.", is_whole=False)
    elif rule.distribution is not None and len(rule.distribution) == 1 and labels.shape[1:] not in ((), (1,)):
        raise ValueError(
            f"Labels must be class ids, (rows,), or one-hot, (rows, {rule.distribution[0]}). Received: the shape "
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
        is_wrong = is_wrong & _broadcast(weights != 0, labels.shape)
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


def _fits(shape: tuple[int, ...], wanted: tuple[int | None, ...]) -> bool:
    return len(shape) == len(wanted) and all(size in (other, None) for other, size in zip(shape, wanted, strict=True))


def _broadcast(weights: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    if weights.size == np.prod(shape):
        return weights.reshape(shape)
    return np.broadcast_to(weights.reshape(weights.shape + (1,) * (len(shape) - weights.ndim)), shape)


def _describe(rule: Rule) -> str:
    kind = "whole numbers" if rule.is_whole else "finite numbers"
    if rule.is_real is not None:
        return "the places of real tokens or choices of their rows"
    if rule.low is None:
        return kind if rule.high is None else f"{kind} up to {rule.high:,}"
    return f"{kind} from {rule.low:,} to {rule.high:,}"


# Texts in place of model inputs, and names of classes in place of labels.

PAIR = {"text", "text_pair"}


def list_texts(x: Any) -> list[Any] | None:
    """Return texts, or pairs of texts, as a list; None for anything else.

    Args:
        x: a text or an object with `text` and `text_pair`, which is one item; or a list, tuple, array or column of
            such items, or of lists or tuples of two texts.
    """
    if isinstance(x, str) or isinstance(x, Mapping) and set(x) == PAIR and _is_item(x):
        return [x]
    if not isinstance(x, list | tuple):
        if not _holds_objects(x):
            return None
        x = x.tolist()
    return list(x) if x and _is_item(x[0]) else None


def number_classes(y: Any, labels: Sequence[str] | None) -> Any:
    """Return the class ids of names, int32, (rows,); anything but a list, array or column of names unchanged.

    Raises:
        ValueError: a name is none of the labels.
    """
    names = y.tolist() if _holds_objects(y) else y
    if not isinstance(names, list | tuple) or not names or not isinstance(names[0], str):
        return y
    ids = {name: number for number, name in enumerate(labels or ())}
    unknown = next((row for row, name in enumerate(names) if name not in ids), None)
    if unknown is not None:
        known = f"Use one of {', '.join(ids)}" if ids else "Build the model with `labels`, or number the classes"
        raise ValueError(f"A label must be one of the model's. Received: {names[unknown]!r} in row {unknown}. {known}.")
    return np.array([ids[name] for name in names], np.int32)


def _holds_objects(x: Any) -> bool:
    """Return whether an array or a column of pandas may hold strings."""
    if not hasattr(x, "dtype") or not hasattr(x, "tolist"):
        return False
    return getattr(x.dtype, "kind", "") in ("U", "T", "O") or str(x.dtype).startswith("str")


def _is_item(item: Any) -> bool:
    if isinstance(item, Mapping):
        return set(item) == PAIR and all(isinstance(text, str) for text in item.values())
    if isinstance(item, list | tuple):
        return len(item) == 2 and all(isinstance(text, str) for text in item)
    return isinstance(item, str)
