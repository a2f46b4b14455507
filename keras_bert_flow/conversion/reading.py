"""Read the parts that every model directory has: the configuration, the tensors and the encoder."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from keras_bert_flow.conversion.adapters import AdaptedTensors
from keras_bert_flow.conversion.codecs.safetensors_file import StoredTensors
from keras_bert_flow.conversion.directory_check import open_directory
from keras_bert_flow.conversion.hf_config import read_hf_config
from keras_bert_flow.models.backbone import Backbone
from keras_bert_flow.records.verification import verify
from keras_bert_flow.stores.fetching import fetch

OVERRIDES = ("dropout_rate", "attention_dropout_rate", "dtype", "name")


def read_directory(path) -> tuple[Path, dict[str, Any], StoredTensors | AdaptedTensors]:
    """Return the folder, the content of its `config.json`, and its tensors by their current names, all finite.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file is damaged or differs from the manifest that lists it, or the tensors do not match
            `config.json`.
    """
    folder = fetch(path)
    if folder.is_dir():
        verify(folder)
    config, tensors = open_directory(folder)
    tensors.check_finite()
    return folder, config, tensors


def make_backbone(folder: Path, config: dict[str, Any], kind: type[Backbone] = Backbone, **overrides) -> Backbone:
    """Build the encoder that the `config.json` of a directory describes, with newly initialised weights.

    Args:
        kind: the backbone class, which may be restricted to one family.
    Raises:
        ValueError: its settings contradict each other.
    """
    source = folder / "config.json"
    try:
        return kind(**(read_hf_config(config, str(source)) | overrides))
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from None


def check_overrides(overrides: Collection[str], options: tuple[str, ...] = ()) -> None:
    """Raise ValueError unless each override is one that every model takes, or one of `options`."""
    known = (*OVERRIDES, *options)
    unknown = sorted(set(overrides) - set(known))
    if unknown:
        raise ValueError(f"Overrides must be among {', '.join(known)}. Received: {', '.join(unknown)}.")
