"""Check that the files of a model directory are consistent, without Keras and without reading the weights."""

import math
import os
from pathlib import Path
from typing import Any

from keras_bert_flow.conversion.adapters import (
    AdaptedTensors,
    check_leftovers,
    find_base,
    is_adapter,
    name_some,
    open_adapted,
    resolve_names,
)
from keras_bert_flow.conversion.codecs.safetensors_file import StoredTensors, TensorMapping, open_model_tensors
from keras_bert_flow.conversion.directory_files import TIED_FIELD, count_pieces, read_hf_config, read_json, read_shape
from keras_bert_flow.conversion.tables.table import FamilyTable, find_table_of
from keras_bert_flow.layers.shape import EncoderShape
from keras_bert_flow.models.families.family import find_family
from keras_bert_flow.models.saved_as import MASKED_LM_HEAD, WORDS_TRANSFORM

FLOAT32_BYTES = 4
# Our layers → the shapes of their tensors, as fields of `EncoderShape`.
_MASKED_LM_SIZES: dict[str, dict[str, tuple[str, ...]]] = {
    "mlm_transform/dense": {"weight": ("embedding_dim", "hidden_dim"), "bias": ("embedding_dim",)},
    "mlm_transform/layer_norm": {"weight": ("embedding_dim",), "bias": ("embedding_dim",)},
    "mlm": {"bias": ("vocabulary_size",)},
}


def check_directory(folder: str | Path) -> dict[str, Any]:
    """Check `config.json` against the tensors and the vocabulary, and return the arguments of the encoder.

    Raises:
        FileNotFoundError, ValueError: as for `open_directory`.
    """
    config, _ = open_directory(Path(folder))
    return read_hf_config(config, str(Path(folder) / "config.json"))


def check_words_head(folder: str | Path) -> None:
    """Check that a model directory has a bag-of-words head; errors as for `require_words_head`."""
    require_words_head(Path(folder), open_directory(Path(folder))[1])


def require_words_head(folder: Path, tensors: StoredTensors | AdaptedTensors) -> None:
    """Raise ValueError unless a directory has the bag-of-words layers that `pooling: bag_of_words` starts from."""
    for layer in WORDS_TRANSFORM.values():
        if (name := f"{layer}.weight") not in tensors:
            raise ValueError(
                f"`pooling: bag_of_words` must go on from the head of a bag of words. Received: {folder}, without "
                f"`{name}`. Pre-train with `pretraining.bag_of_words` above 0, or choose another pooling."
            )


def check_masked_lm(folder: str | Path) -> dict[str, Any]:
    """Check a model directory as `check_directory` does, and that it has a masked-LM head.

    Raises:
        FileNotFoundError, ValueError: as for `open_directory`, or there is no such head.
    """
    config, tensors = open_directory(Path(folder))
    source = str(Path(folder) / "config.json")
    shape, names = read_shape(config, source), find_table_of(config, source).name_heads(MASKED_LM_HEAD, "ForMaskedLM")
    for layer, parts in _MASKED_LM_SIZES.items():
        for part, sizes in parts.items():
            name = f"{names[layer]}.{part}"
            if name not in tensors:
                raise ValueError(
                    f"A model must have a masked-LM head to score tokens. Received: {folder}, without `{name}`. Take "
                    "what `kbf pretrain` made of the objective mlm, a BertForMaskedLM or a BertForPreTraining."
                )
            _check_shape(name, tuple(getattr(shape, size) for size in sizes), tensors)
    return read_hf_config(config, source)


def open_directory(
    folder: Path, base: str | Path | None = None
) -> tuple[dict[str, Any], StoredTensors | AdaptedTensors]:
    """Return the content of `config.json` and the lazily read tensors by their current names.

    For an adapter these are its base model's tensors with the adapter merged in. An adapter without a `config.json`
    uses its base model's.

    Args:
        base: the base model of an adapter, if it is not the one that the adapter names.
    Raises:
        FileNotFoundError: the folder, its config.json, its model.safetensors or an adapter's base model is missing.
        ValueError: a file is damaged, does not fit the others or is of an unknown family; the message names it.
    """
    base = find_base(folder, base) if is_adapter(folder) else folder
    path = (folder if (folder / "config.json").is_file() else base) / "config.json"
    config, source = read_json(path), str(path)
    shape, table = read_shape(config, source), find_table_of(config, source)
    stored = resolve_names(config, table, open_model_tensors(base))
    if stored.tied is not None:
        config |= {TIED_FIELD: stored.tied}
    tensors: StoredTensors | AdaptedTensors = stored.tensors
    if base != folder:
        _check_base(config, path, base / "config.json")
        tensors = open_adapted(folder, stored.tensors, table, config)
    check_sizes(shape, table, tensors)
    check_leftovers(shape, table, tensors)
    check_memory(tensors)
    count_pieces(folder, shape.vocabulary_size)
    return config, tensors


def list_remarks(folder: Path) -> tuple[str, ...]:
    """Return what reading the tensors of a directory renames or leaves out, one clause each."""
    config = read_json(folder / "config.json")
    table = find_table_of(config, str(folder / "config.json"))
    return resolve_names(config, table, open_model_tensors(folder)).remarks


def _check_base(config: dict[str, Any], source: Path, base: Path) -> None:
    """Raise ValueError unless an adapter's base model has the settings of the encoder it was trained on.

    Args:
        config: content of `source`, the `config.json` of the adapter.
        base: `config.json` of the base model.
    """
    found = read_hf_config(read_json(base), str(base))
    for name, value in read_hf_config(config, str(source)).items():
        if isinstance(value, int | str) and found.get(name) != value:
            raise ValueError(
                f"{source}: `{name}` must be that of the base of the adapter. Received: {name}={value}, and "
                f"{found.get(name)} in {base}. Name the model that it was trained on."
            )


def check_sizes(shape: EncoderShape, table: FamilyTable, tensors: TensorMapping) -> None:
    """Raise ValueError unless every tensor of the encoder exists and has the shape that `config.json` implies."""
    for name, sizes in table.list_sizes(shape):
        if name not in tensors:
            count = f" of {shape.num_layers} layers" if name.startswith(table.block_name.partition("{")[0]) else ""
            title = find_family(table.family).title
            alike = [other for other in tensors if other.endswith(f".{name}")]
            found = f" Received: {name_some(alike)}, with a prefix that is not known." if alike else ""
            raise ValueError(
                f"{tensors.path}: there is no tensor `{name}`.{found} Is it a {title}{count}, as config.json says?"
            )
        _check_shape(name, tuple(getattr(shape, size) for size in sizes), tensors)


def _check_shape(name: str, expected: tuple[int, ...], tensors: TensorMapping) -> None:
    if tensors.shapes[name] != expected:
        raise ValueError(
            f"{tensors.path}: `{name}` must have the shape {expected}, by config.json. "
            f"Received: {tensors.shapes[name]}. Do the two files belong together?"
        )


def check_memory(tensors: TensorMapping) -> None:
    """Raise ValueError unless a model in float32 fits in the memory of the machine."""
    needed = FLOAT32_BYTES * sum(math.prod(shape) for shape in tensors.shapes.values())
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > memory:
        raise ValueError(
            f"{tensors.path}: a model must fit in memory. Received: {needed:,} bytes, of {memory:,} that this machine "
            "has. Choose a smaller model."
        )
