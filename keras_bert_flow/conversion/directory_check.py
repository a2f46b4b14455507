"""Check that the files of a model directory belong together, without Keras and without reading the weights."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keras_bert_flow.conversion import huggingface as hf
from keras_bert_flow.conversion.directory_files import check_vocabulary, read_json
from keras_bert_flow.conversion.hf_config import read_hf_config
from keras_bert_flow.conversion.tensor_file import read_shapes


def check_directory(folder: str | Path) -> dict[str, Any]:
    """Check `config.json` against the tensors and `vocab.txt`, and return the arguments of the encoder.

    Raises:
        FileNotFoundError: the folder, its config.json or its model.safetensors is missing.
        ValueError: a file is damaged, does not fit the others or is not BERT's; the message names it.
    """
    source = Path(folder) / "config.json"
    settings = read_hf_config(read_json(source), str(source))
    shapes = read_shapes(source.with_name("model.safetensors"))
    check_sizes(settings, {hf.normalise_name(name): shape for name, shape in shapes.items()}, source)
    if source.with_name("vocab.txt").is_file():
        check_vocabulary(source.with_name("vocab.txt"), settings["vocabulary_size"])
    return settings


def check_sizes(settings: Mapping[str, Any], found: Mapping[str, tuple[int, ...]], source: Path) -> None:
    """Raise ValueError unless the tensors have the sizes of `config.json`, before an encoder of these is allocated.

    Args:
        found: shape of each tensor by its name of today.
        source: the config.json.
    """
    shapes = (
        (hf.EMBEDDINGS["token_embedding/embeddings"], ("vocabulary_size", "hidden_dim")),
        (hf.EMBEDDINGS["embeddings/position_embedding"], ("max_positions", "hidden_dim")),
        (hf.EMBEDDINGS["embeddings/segment_embedding"], ("num_segments", "hidden_dim")),
        ("encoder.layer.0.intermediate.dense.weight", ("intermediate_dim", "hidden_dim")),
    )
    for name, sizes in shapes:
        expected = tuple(settings[size] for size in sizes)
        if name not in found:
            raise ValueError(f"{source.with_name('model.safetensors')}: there is no tensor `{name}`. Is it a BERT?")
        if found[name] != expected:
            raise ValueError(
                f"{source.with_name('model.safetensors')}: `{name}` must have the shape {expected}, by config.json. "
                f"Received: {found[name]}. Do the two files belong together?"
            )
    last = f"encoder.layer.{settings['num_layers'] - 1}.output.dense.weight"
    if last not in found:
        raise ValueError(
            f"{source.with_name('model.safetensors')}: there is no tensor `{last}`, though config.json has "
            f"num_hidden_layers={settings['num_layers']}. Do the two files belong together?"
        )
