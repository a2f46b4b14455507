"""Check that the files of a model directory belong together, without Keras and without reading the weights."""

import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from keras_bert_flow.conversion import huggingface as hf
from keras_bert_flow.conversion.directory_files import check_fast_tokenizer, check_vocabulary, read_json
from keras_bert_flow.conversion.hf_config import read_hf_config
from keras_bert_flow.conversion.tensor_file import StoredTensors, open_model_tensors

FLOAT32_BYTES = 4
# Tensors of an encoder → the settings that are their sizes.
_NORM = {"weight": ("hidden_dim",), "bias": ("hidden_dim",)}
_SQUARE = {"weight": ("hidden_dim", "hidden_dim"), "bias": ("hidden_dim",)}
_EMBEDDINGS = {
    "word_embeddings": {"weight": ("vocabulary_size", "hidden_dim")},
    "position_embeddings": {"weight": ("max_positions", "hidden_dim")},
    "token_type_embeddings": {"weight": ("num_segments", "hidden_dim")},
    "LayerNorm": _NORM,
}
_LAYER = {
    "attention.self.query": _SQUARE,
    "attention.self.key": _SQUARE,
    "attention.self.value": _SQUARE,
    "attention.output.dense": _SQUARE,
    "attention.output.LayerNorm": _NORM,
    "intermediate.dense": {"weight": ("intermediate_dim", "hidden_dim"), "bias": ("intermediate_dim",)},
    "output.dense": {"weight": ("hidden_dim", "intermediate_dim"), "bias": ("hidden_dim",)},
    "output.LayerNorm": _NORM,
}
_MASKED_LM_HEAD = {
    "cls.predictions.transform.dense": _SQUARE,
    "cls.predictions.transform.LayerNorm": _NORM,
    "cls.predictions": {"bias": ("vocabulary_size",)},
}
_WORDS_TRANSFORM = {"cls.words.transform.dense": _SQUARE, "cls.words.transform.LayerNorm": _NORM}


def check_directory(folder: str | Path) -> dict[str, Any]:
    """Check `config.json` against the tensors and the vocabulary, and return the arguments of the encoder.

    Raises:
        FileNotFoundError, ValueError: as `open_directory`.
    """
    config, _ = open_directory(Path(folder))
    return read_hf_config(config, str(Path(folder) / "config.json"))


def check_words_head(folder: str | Path) -> None:
    """Check that a model directory has the head of a bag of words; errors as of `require_words_head`."""
    require_words_head(Path(folder), open_directory(Path(folder))[1])


def require_words_head(folder: Path, tensors: StoredTensors) -> None:
    """Raise ValueError unless a directory has the layers by which `pooling: bag_of_words` begins."""
    for name, _ in _name_tensors("", _WORDS_TRANSFORM):
        if name not in tensors:
            raise ValueError(
                f"`pooling: bag_of_words` must go on from the head of a bag of words. Received: {folder}, without "
                f"`{name}`. Pre-train with `pretraining.bag_of_words` above 0, or choose another pooling."
            )


def check_masked_lm(folder: str | Path) -> dict[str, Any]:
    """Check a model directory as `check_directory` does, and that it has a masked-LM head.

    Raises:
        FileNotFoundError, ValueError: as `open_directory`, or there is no such head.
    """
    config, tensors = open_directory(Path(folder))
    settings = read_hf_config(config, str(Path(folder) / "config.json"))
    for name, sizes in _name_tensors("", _MASKED_LM_HEAD):
        if name not in tensors:
            raise ValueError(
                f"A model must have a masked-LM head to score tokens. Received: {folder}, without `{name}`. Take what "
                "`kbf pretrain` made, a BertForMaskedLM or a BertForPreTraining."
            )
        _check_shape(name, tuple(settings[size] for size in sizes), tensors)
    return settings


def open_directory(folder: Path) -> tuple[dict[str, Any], StoredTensors]:
    """Return the content of `config.json` and the tensors by their names of today, none of which is read yet.

    Raises:
        FileNotFoundError: the folder, its config.json or its model.safetensors is missing.
        ValueError: a file is damaged, does not fit the others or is not BERT's; the message names it.
    """
    config = read_json(folder / "config.json")
    settings = read_hf_config(config, str(folder / "config.json"))
    tensors = open_model_tensors(folder / "model.safetensors").rename(hf.normalise_name)
    _check_sizes(settings, tensors)
    _check_memory(tensors)
    if (folder / "vocab.txt").is_file():
        check_vocabulary(folder / "vocab.txt", settings["vocabulary_size"])
    elif (folder / "tokenizer.json").is_file():
        check_fast_tokenizer(folder / "tokenizer.json", settings["vocabulary_size"])
    return config, tensors


def _check_sizes(settings: dict[str, Any], tensors: StoredTensors) -> None:
    """Raise ValueError unless every tensor of the encoder is there and has the sizes of `config.json`."""
    for name, sizes in _list_tensors(settings["num_layers"]):
        expected = tuple(settings[size] for size in sizes)
        if name not in tensors:
            count = f" of {settings['num_layers']} layers" if name.startswith("encoder.") else ""
            raise ValueError(f"{tensors.path}: there is no tensor `{name}`. Is it a BERT{count}, as config.json says?")
        _check_shape(name, expected, tensors)


def _check_shape(name: str, expected: tuple[int, ...], tensors: StoredTensors) -> None:
    if tensors.shapes[name] != expected:
        raise ValueError(
            f"{tensors.path}: `{name}` must have the shape {expected}, by config.json. "
            f"Received: {tensors.shapes[name]}. Do the two files belong together?"
        )


def _list_tensors(num_layers: int) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the tensors one by one: a damaged `config.json` may speak of a thousand million layers."""
    yield from _name_tensors("embeddings.", _EMBEDDINGS)
    for layer in range(num_layers):
        yield from _name_tensors(f"encoder.layer.{layer}.", _LAYER)


def _name_tensors(
    prefix: str, parts: Mapping[str, Mapping[str, tuple[str, ...]]]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    for part, tensors in parts.items():
        yield from ((f"{prefix}{part}.{tensor}", sizes) for tensor, sizes in tensors.items())


def _check_memory(tensors: StoredTensors) -> None:
    needed = FLOAT32_BYTES * sum(math.prod(shape) for shape in tensors.shapes.values())
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > memory:
        raise ValueError(
            f"{tensors.path}: a model must fit in memory. Received: {needed:,} bytes, of {memory:,} that this machine "
            "has. Choose a smaller model."
        )
