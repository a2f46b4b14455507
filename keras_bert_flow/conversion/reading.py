"""Read what every model directory has: the configuration, the tensors and the shape of the encoder."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from keras_bert_flow.conversion import huggingface as hf
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
    _check_sizes(settings, tensors, source)
    if (folder / "vocab.txt").is_file():
        check_vocabulary(folder / "vocab.txt", settings["vocabulary_size"])
    try:
        return BertBackbone(**(settings | overrides))
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from None


def _check_sizes(settings: dict[str, Any], tensors: dict, source: Path) -> None:
    """Raise ValueError unless the tensors have the sizes of `config.json`, before an encoder of these is allocated."""
    shapes = (
        (hf.EMBEDDINGS["token_embedding/embeddings"], ("vocabulary_size", "hidden_dim")),
        (hf.EMBEDDINGS["embeddings/position_embedding"], ("max_positions", "hidden_dim")),
        (hf.EMBEDDINGS["embeddings/segment_embedding"], ("num_segments", "hidden_dim")),
        ("encoder.layer.0.intermediate.dense.weight", ("intermediate_dim", "hidden_dim")),
    )
    for name, sizes in shapes:
        expected = tuple(settings[size] for size in sizes)
        if name not in tensors:
            raise ValueError(f"{source.with_name('model.safetensors')}: there is no tensor `{name}`. Is it a BERT?")
        if tensors[name].shape != expected:
            raise ValueError(
                f"{source.with_name('model.safetensors')}: `{name}` must have the shape {expected}, by config.json. "
                f"Received: {tensors[name].shape}. Do the two files belong together?"
            )
    last = f"encoder.layer.{settings['num_layers'] - 1}.output.dense.weight"
    if last not in tensors:
        raise ValueError(
            f"{source.with_name('model.safetensors')}: there is no tensor `{last}`, though config.json has "
            f"num_hidden_layers={settings['num_layers']}. Do the two files belong together?"
        )


def check_overrides(overrides: Collection[str], options: tuple[str, ...] = ()) -> None:
    """Raise ValueError unless each override is one that any model takes, or an option of this one."""
    known = (*OVERRIDES, *options)
    unknown = sorted(set(overrides) - set(known))
    if unknown:
        raise ValueError(f"Overrides must be among {', '.join(known)}. Received: {', '.join(unknown)}.")
