"""Continued pre-training: load the initial weights from a model directory."""

import logging
from pathlib import Path

from keras_bert_flow.config.model import ModelConfig
from keras_bert_flow.config.pretraining import PretrainingConfig
from keras_bert_flow.conversion.model_directory import load_pretrainer
from keras_bert_flow.models.pretraining.registry import find_pretrainer
from keras_bert_flow.models.with_head import ModelWithHead
from keras_bert_flow.training.pretraining.initial_shape import check_shape

_logger = logging.getLogger(__name__)


def load_initial_model(folder: Path, shape: ModelConfig, objective: str, settings: PretrainingConfig) -> ModelWithHead:
    """Load a model with the heads of the objective; those that the directory lacks are new, with a warning.

    Args:
        folder: a model directory.
        shape: the required shape; dropout rates are taken from it.
        objective: of the records.
        settings: of the heads.
    Raises:
        FileNotFoundError: the directory is incomplete.
        ValueError: the model has another shape, or is damaged.
    """
    rates = {name: getattr(shape, name) for name in ("dropout_rate", "attention_dropout_rate")}
    kind = find_pretrainer(objective)
    options = {name: getattr(settings, name) for name in kind.settings}
    model, new_layers = load_pretrainer(kind, folder, bag_of_words=settings.bag_of_words, options=options, **rates)
    check_shape(model.backbone.get_config(), shape, folder)
    if new_layers:
        _logger.warning("%s has no weights for %s, which begin anew.", folder, ", ".join(new_layers))
    return model
