"""Resolve a configuration for continued pre-training: it takes the initial model's shape and tokenizer."""

from dataclasses import fields
from pathlib import Path
from typing import Any

from keras_bert_flow.config.loading import make_config
from keras_bert_flow.config.model import ModelConfig
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.models.families.registry import find_family
from keras_bert_flow.models.sizes import get_size
from keras_bert_flow.preflight.models import check_initial_model
from keras_bert_flow.stores.fetching import fetch
from keras_bert_flow.text.tokenizers.files import find_case, find_tokenizer_file
from keras_bert_flow.training.pretraining.initial_shape import FREE


def settle_initial_model(config: PipelineConfig) -> PipelineConfig:
    """Return a configuration with the shape and tokenizer of its `initial_model`, which is downloaded if remote.

    Default settings of `model` and `vocabulary` follow the model; others must agree with it.

    Raises:
        FileNotFoundError, OSError, ValueError: the model cannot be fetched, is damaged, or a setting contradicts it.
    """
    if config.initial_model is None:
        return config
    folder = fetch(config.initial_model).absolute()
    found = check_initial_model(folder)
    file, given = find_tokenizer_file(folder), config.vocabulary.file
    if given is not None and Path(given).resolve() != file.resolve():
        raise ValueError(
            f"`initial_model` brings its tokenizer. Received: vocabulary.file={given}, another one. Leave it out."
        )
    vocabulary = {"file": str(file), "cased": find_case(file, None)}
    values = config.model_dump() | {
        "initial_model": str(folder),
        "model": _describe_shape(found, config.model),
        "vocabulary": config.vocabulary.model_dump() | vocabulary,
    }
    return make_config(PipelineConfig, values, str(folder))


def _describe_shape(found: dict[str, Any], model: ModelConfig) -> dict[str, Any]:
    """Return the section `model` that describes a model directory; ValueError if a setting contradicts it."""
    names = {field.name for field in fields(find_family(found["family"]).shape)} - FREE - {"vocabulary_size"}
    known = {name: found[name] for name in ("family", *sorted(names)) if name in found}
    shape = {name: value for name, value in known.items() if name in ModelConfig.model_fields}
    options = {name: value for name, value in known.items() if name not in shape}
    default = ModelConfig()
    given = {} if model.size == default.size else get_size(model.size)
    given |= {name: getattr(model, name) for name in shape if getattr(model, name) != getattr(default, name)}
    for name, value in (given | model.options).items():
        if known.get(name) != value:
            raise ValueError(
                f"The shape of `initial_model` is its own. Received: model.{name}={value}, where it has "
                f"{known.get(name, 'no such field')}. Leave it out."
            )
    return model.model_dump() | shape | {"options": options}
