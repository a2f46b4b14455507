"""Read the parts that every model directory has: the configuration, the tensors and the encoder."""

import logging
from collections.abc import Collection
from pathlib import Path
from typing import Any

from keras_bert_flow.conversion.adapters import AdaptedTensors
from keras_bert_flow.conversion.codecs.safetensors_file import StoredTensors
from keras_bert_flow.conversion.directory_check import open_directory
from keras_bert_flow.conversion.directory_files import count_pieces
from keras_bert_flow.conversion.hf_config import read_hf_config
from keras_bert_flow.conversion.stored_names import list_unread, name_some
from keras_bert_flow.conversion.tables.registry import find_table
from keras_bert_flow.models.backbone import Backbone
from keras_bert_flow.records.verification import verify
from keras_bert_flow.stores.fetching import fetch

_logger = logging.getLogger(__name__)

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
    if unread := list_unread(find_table(config["model_type"]), tensors):
        _logger.warning(
            "%s: %d tensors of no head known here are not read: %s.", folder, len(unread), name_some(unread)
        )
    return folder, config, tensors


def make_backbone(folder: Path, config: dict[str, Any], kind: type[Backbone] = Backbone, **overrides) -> Backbone:
    """Build the encoder that the `config.json` of a directory describes, with newly initialised weights.

    Args:
        kind: the backbone class, which may be restricted to one family.
    Raises:
        ValueError: its settings contradict each other.
    """
    source = folder / "config.json"
    settings = read_hf_config(config, str(source))
    rows = settings["vocabulary_size"]
    pieces = count_pieces(folder, rows)
    if pieces < rows:
        settings["num_pieces"] = pieces
        _logger.warning(
            "%s: %d of %d rows of the token embeddings are of no piece of the tokenizer, and are never predicted.",
            folder,
            rows - pieces,
            rows,
        )
    try:
        return kind(**(settings | overrides))
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from None


def check_overrides(overrides: Collection[str], options: tuple[str, ...] = ()) -> None:
    """Raise ValueError unless each override is one that every model takes, or one of `options`."""
    known = (*OVERRIDES, *options)
    unknown = sorted(set(overrides) - set(known))
    if unknown:
        raise ValueError(f"Overrides must be among {', '.join(known)}. Received: {', '.join(unknown)}.")
