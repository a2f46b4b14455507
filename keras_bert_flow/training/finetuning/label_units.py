"""Standardise the numbers of a regression for training, where they are far from what a new head predicts."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from keras_bert_flow.tasks.core.features import Features

HEAD = "classifier"  # name of the dense layer
OUTPUT = "logits"
# A new head predicts about 0, and a few hundred steps of a fine-tuning rate move it by units, not by thousands. Scales
# of judgements, such as 0 to 5, 1 to 10 or -1 to 1, are within these bounds and stay as they are.
FARTHEST_MEAN, LEAST_DEVIATION, LARGEST_DEVIATION = 10.0, 0.1, 10.0


@dataclass(frozen=True)
class LabelUnits:
    """The mean and standard deviation by which numbers are standardised: (number - mean) / deviation."""

    mean: float
    deviation: float

    def standardise(self, features: Features) -> Features:
        """Return features with standardised labels."""
        numbers = np.asarray(features.labels[OUTPUT], np.float64)
        labels = ((numbers - self.mean) / self.deviation).astype(np.float32)
        return replace(features, labels={**features.labels, OUTPUT: labels})

    def restore(self, outputs: dict[str, Any]) -> dict[str, Any]:
        """Return the outputs of a model of standardised numbers in the units of the table."""
        return outputs | {OUTPUT: np.asarray(outputs[OUTPUT], np.float64) * self.deviation + self.mean}

    def put_into_head(self, model: Any) -> None:
        """Change the head of a model of standardised numbers to predict in the units of the table."""
        layer = model.get_layer(HEAD)
        layer.kernel.assign(layer.kernel * self.deviation)
        layer.bias.assign(layer.bias * self.deviation + self.mean)

    def take_from_head(self, model: Any) -> None:
        """Change the head of a model in the units of the table to predict standardised numbers."""
        layer = model.get_layer(HEAD)
        layer.kernel.assign(layer.kernel / self.deviation)
        layer.bias.assign((layer.bias - self.mean) / self.deviation)


def find_units(kind: str, features: Features) -> LabelUnits | None:
    """Return the units to standardise the labels of training rows by; None for other tasks and ordinary scales."""
    if kind != "regression":
        return None
    numbers = np.asarray(features.labels[OUTPUT], np.float64)
    mean, deviation = float(numbers.mean()), float(numbers.std())
    is_ordinary = abs(mean) <= FARTHEST_MEAN and LEAST_DEVIATION <= deviation <= LARGEST_DEVIATION
    return None if is_ordinary or deviation == 0 else LabelUnits(mean, deviation)
