"""Read what every model directory has: the configuration, the tensors and the shape of the encoder."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from keras_bert_flow.conversion import huggingface as hf
from keras_bert_flow.conversion.directory_check import check_sizes
from keras_bert_flow.conversion.directory_files import check_vocabulary, read_json
from keras_bert_flow.conversion.hf_config import read_hf_config
from keras_bert_flow.conversion.tensor_file import read_tensors
from keras_bert_flow.models.backbone import BertBackbone

OVERRIDES = ("dropout_rate", "attention_dropout_rate", "dtype", "name")


def read_directory(path) -> tuple[Path, dict[str, Any], dict]:
    """Return the folder, the content of its `config.json`, and its tensors by their names of today."""
    folder = Path(path)
    config = read_json(folder / "config.json")
    tensors = read_tensors(folder / "model.safetensors")
    return folder, config, {hf.normalise_name(name): array for name, array in tensors.items()}


def make_backbone(folder: Path, config: dict[str, Any], tensors: dict, **overrides) -> BertBackbone:
    """Build the encoder that `config.json` describes, with new weights.

    Raises:
        ValueError: it is not BERT's, or `vocab.txt` or the tensors have other sizes.
    """
    source = folder / "config.json"
    settings = read_hf_config(config, str(source))
    check_sizes(settings, {name: array.shape for name, array in tensors.items()}, source)
    if (folder / "vocab.txt").is_file():
        check_vocabulary(folder / "vocab.txt", settings["vocabulary_size"])
    try:
        return BertBackbone(**(settings | overrides))
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from None


def check_overrides(overrides: Collection[str], options: tuple[str, ...] = ()) -> None:
    """Raise ValueError unless each override is one that any model takes, or an option of this one."""
    known = (*OVERRIDES, *options)
    unknown = sorted(set(overrides) - set(known))
    if unknown:
        raise ValueError(f"Overrides must be among {', '.join(known)}. Received: {', '.join(unknown)}.")
