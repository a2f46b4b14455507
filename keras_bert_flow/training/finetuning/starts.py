"""How a fine-tuning run starts: which weights it trains, a head fitted by a linear probe, labels in standard units."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np

from keras_bert_flow.backends.values import read_variable
from keras_bert_flow.config.finetuning import ALL, FinetuningConfig
from keras_bert_flow.console.terminal import told_if_long
from keras_bert_flow.data.tasks import ONLY_OUTPUT, predict_features
from keras_bert_flow.models.reentrant import ReentrantModel
from keras_bert_flow.tasks.baselines.linear_head import MOST_ROWS, add_directions, fit_start, spread_rows
from keras_bert_flow.tasks.core.task import Features

HEAD = "classifier"  # name of the dense layer

_logger = logging.getLogger(__name__)


def choose_trained_part(model: Any, settings: FinetuningConfig) -> None:
    """Freeze layers or add LoRA according to the settings; call it before the model is compiled.

    The pooler is trained with the head: in some families it is part of the head, in others it may be new.
    """
    backbone = model.backbone
    if settings.lora_rank is not None:
        backbone.enable_lora(settings.lora_rank, settings.lora_alpha, settings.lora_targets)
    elif settings.frozen_layers is not None:
        frozen = settings.frozen_layers
        backbone.freeze_lowest(len(backbone.blocks) if frozen == ALL else frozen)


class LinearProbe:
    """Linear probe: fit the head of a model that predicts from one vector per text, with the encoder unchanged.

    With a few hundred labels, a random head distorts the features of the encoder before it has learned anything itself.

    Args:
        model: of a task of kind classification, multi_label or regression.
        kind: that kind.
        label_words: token ids of words for each class, for a model with `bag_of_words` pooling: the products of its
            vectors with the word embeddings are log-odds of these words. The probe is fitted to these products in
            addition to the vectors. They are scaled to the total variance of the vectors, so that regularisation
            favours the direction of the words.
    Source: Kumar et al. 2022, linear probing, then fine-tuning; arXiv:2202.10054. There the probe is trained by
        gradient descent; here it is the optimum of a convex loss. Words for classes: Schick and Schuetze 2021,
        arXiv:2001.07676.
    """

    def __init__(self, model: keras.Model, kind: str, label_words: Sequence[Sequence[int]] = ()):
        self._layer, self._kind, self._label_words = model.get_layer(HEAD), kind, label_words
        self._table = model.backbone.token_embedding.embeddings
        # One model for all seeds: it shares the weights of `model`, and is compiled only once.
        self._pooled = ReentrantModel(model.input, self._layer.input, name="pooled_texts")
        self._pooled.compiles_shapes = model.compiles_shapes

    def start_head(self, features: Features, max_widths: int, seed: int) -> None:
        """Set kernel and bias of the head to those fitted to the vectors of the training rows.

        The head stays new if the fitted one is no better start; see `fit_start`. A warning says so.

        Args:
            features: the training rows, with labels; at most `MOST_ROWS` of them, evenly spaced, are used.
            max_widths: as for `predict_features`.
            seed: of the cross-validation folds that select the regularisation.
        Raises:
            ValueError: a vector is NaN or infinite.
        """
        with told_if_long(f"Fitting the head to the vectors of {min(len(features), MOST_ROWS):,} texts"):
            rows = _take_rows(features, spread_rows(len(features), MOST_ROWS))
            vectors = predict_features(self._pooled, rows, max_widths)[ONLY_OUTPUT]  # (rows, hidden)
            columns = None
            if self._label_words:
                table = read_variable(self._table)
                words = np.stack([table[list(ids)].mean(axis=0) for ids in self._label_words], axis=1)
                columns = add_directions(vectors, words)  # from `words`, (hidden, classes)
                vectors = vectors @ columns
            rng = np.random.default_rng(seed)
            start = fit_start(self._kind, vectors, rows.labels[ONLY_OUTPUT], self._layer.units, rng)
            if start.reason:
                _logger.warning("`finetuning.head_start`: %s", start.reason)
            if start.head is None:
                return
            kernel, bias = start.head
            kernel = kernel if columns is None else columns @ kernel
            self._layer.kernel.assign(kernel.astype(np.float32))
            self._layer.bias.assign(bias.astype(np.float32))


def _take_rows(features: Features, rows: np.ndarray) -> Features:
    """Return a subset of the rows of features with one sequence per row."""
    if len(rows) == len(features):
        return features
    return replace(
        features,
        token_ids=[features.token_ids[row] for row in rows],
        first_lengths=features.first_lengths[rows],
        examples=features.examples[rows],
        labels={name: values[rows] for name, values in features.labels.items()},
        details=(),
    )


# Standardise the numbers of a regression for training, where they are far from what a new head predicts.

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
