"""Match predictions in JSON lines to the examples that they are of, by their texts or their index."""

import json
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_bert_flow.tasks.formats.rows import abridge

INDEX = "index"  # of the example, from 0, as in GLUE's tables


def with_inputs(examples: Sequence[Any], predictions: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return predictions with the texts that they are of, by which `match_predictions` matches them, or their id."""
    pairs = zip(examples, predictions, strict=True)
    return [dict(found) if "id" in found else example.inputs | dict(found) for example, found in pairs]


def match_predictions(
    path: str | Path, predictions: Sequence[Mapping[str, Any]], examples: Sequence[Any]
) -> list[Mapping[str, Any]]:
    """Return the prediction of each example.

    Those of equal texts are taken in their order. Predictions for blank texts, which `kbf predict` gives for blank
    lines, are left out if no example is blank.

    Raises:
        ValueError: the predictions have neither texts nor an index, or are not one for each example.
    """
    names = list(examples[0].inputs)
    if all(name in found for found in predictions for name in names):
        return _match_texts(path, predictions, examples, names)
    if all(type(found.get(INDEX)) is int for found in predictions):
        by_index = {found[INDEX]: found for found in predictions}
        if len(predictions) != len(examples):
            raise wrong_number(path, len(predictions), len(examples))
        if set(by_index) != set(range(len(examples))):
            raise ValueError(
                f"{path}: the field `{INDEX}` must number the examples from 0 to {len(examples) - 1}. "
                "Received: other numbers. Predict the whole file."
            )
        return [by_index[number] for number in range(len(examples))]
    raise ValueError(
        f"{path}: predictions must have the texts that they are of ({', '.join(names)}) or their `{INDEX}` from 0, or "
        "their order is only a guess. Received: lines without. Make the file with `kbf predict --input`, or add one."
    )


def wrong_number(path: str | Path, predictions: int, examples: int) -> ValueError:
    """Return the error for a file with another number of predictions than examples."""
    return ValueError(
        f"{path}: must hold a prediction for each example. Received: {predictions} for {examples}. "
        "Predict the file that they are from."
    )


def _match_texts(
    path: str | Path, predictions: Sequence[Mapping[str, Any]], examples: Sequence[Any], names: Sequence[str]
) -> list[Mapping[str, Any]]:
    of_texts: defaultdict[str, deque[Mapping[str, Any]]] = defaultdict(deque)
    for found in predictions:
        of_texts[json.dumps([found[name] for name in names])].append(found)
    matched: list[Mapping[str, Any]] = []
    for example in examples:
        waiting = of_texts[json.dumps([example.inputs[name] for name in names])]
        if not waiting:
            raise ValueError(
                f"{path}: must hold a prediction for each example. Received: none for "
                f"{abridge([str(value) for value in example.inputs.values()])}. Predict the file that they are from."
            )
        matched.append(waiting.popleft())
    left = [found for waiting in of_texts.values() for found in waiting]
    if strange := [found for found in left if any(_is_text(found[name]) for name in names)]:
        raise ValueError(
            f"{path}: each prediction must be of an example. Received: {len(strange):,} that are not, as of "
            f"{abridge([str(strange[0][name]) for name in names])}. Predict the file that they are from."
        )
    return matched


def _is_text(value: Any) -> bool:
    return any(map(_is_text, value)) if isinstance(value, list) else bool(str(value).strip())
