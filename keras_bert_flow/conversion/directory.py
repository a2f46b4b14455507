"""Open a model directory once, and check that its files are consistent, without Keras."""

import math
import os
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

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
from keras_bert_flow.conversion.directory_files import (
    TIED_FIELD,
    check_fast_tokenizer,
    check_vocabulary,
    read_hf_config,
    read_json,
    read_shape,
)
from keras_bert_flow.conversion.tables.table import FamilyTable, find_table_of
from keras_bert_flow.layers.shape import EncoderShape
from keras_bert_flow.models.families.family import find_family
from keras_bert_flow.models.saved_as import CLASSIFIER_HEAD, MASKED_LM_EXTENSION, MASKED_LM_HEAD, WORDS_TRANSFORM
from keras_bert_flow.results.artifacts import OpenedFiles
from keras_bert_flow.results.publishing import verify
from keras_bert_flow.stores.fetching import fetch
from keras_bert_flow.text.tokenizers.files import find_tokenizer_file, read_tokenizer_file
from keras_bert_flow.text.tokenizers.settings import FAST_TOKENIZER
from keras_bert_flow.text.tokenizers.tokenizer import Tokenizer

FLOAT32_BYTES = 4
# Our layers → the shapes of their tensors, as fields of `EncoderShape`.
_MASKED_LM_SIZES: dict[str, dict[str, tuple[str, ...]]] = {
    "mlm_transform/dense": {"weight": ("mlm_dim", "hidden_dim"), "bias": ("mlm_dim",)},
    "mlm_transform/layer_norm": {"weight": ("mlm_dim",), "bias": ("mlm_dim",)},
    "mlm": {"bias": ("vocabulary_size",)},
}
_EXTENSION_SIZES = {"mlm_extension": {"weight": ("mlm_extension_dim", "vocabulary_size")}}


class OpenedModel(NamedTuple):
    """The configuration and the tensors of a model directory.

    Attributes:
        config: the content of `config.json`, and whether a masked-LM head is tied where the tensors say so.
        tensors: by their current names, read lazily; those of an adapter merged with its base model's.
        remarks: what reading the tensors renames or leaves out, one clause each.
    """

    config: dict[str, Any]
    tensors: StoredTensors | AdaptedTensors
    remarks: tuple[str, ...]


class ModelDirectory:
    """A model directory whose files are opened and parsed once: made for a check, and passed on to what loads it.

    Args:
        path: local or remote location; see `stores.fetching.fetch`.
        base: the base model of an adapter, if it is not the one that the adapter names.
    Attributes:
        folder: the directory on this disk.
        files: its files, each opened once.
    """

    def __init__(self, path: str | Path, base: str | Path | None = None):
        self.folder, self.files, self._base = fetch(path), OpenedFiles(), base

    @classmethod
    def of(cls, model: "str | Path | ModelDirectory") -> "ModelDirectory":
        """Return a model directory: the one that is given, or that of a path."""
        return model if isinstance(model, ModelDirectory) else cls(model)

    def __fspath__(self) -> str:
        return str(self.folder)

    __str__ = __fspath__

    def verify(self) -> None:
        """Compare the digests of the files with the manifest that lists them, if there is one.

        Raises:
            FileNotFoundError, ValueError: as for `results.publishing.verify`.
        """
        if self.folder.is_dir():
            verify(self.folder, files=self.files)

    @cached_property
    def source(self) -> Path:
        """The path of `config.json`; that of the base model for an adapter without one."""
        path = self.folder / "config.json"
        return path if path.is_file() or self._whole == self.folder else self._whole / "config.json"

    @cached_property
    def stored_config(self) -> dict[str, Any]:
        """The content of `config.json`.

        Raises:
            FileNotFoundError, ValueError: it is missing or damaged.
        """
        return read_json(self.source, read=self.files.read)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The arguments of the encoder."""
        return read_hf_config(self.stored_config, str(self.source))

    @cached_property
    def shape(self) -> EncoderShape:
        """The shape of the encoder."""
        return read_shape(self.stored_config, str(self.source))

    @cached_property
    def num_pieces(self) -> int:
        """The number of pieces of the tokenizer, at most that of the rows of the embeddings, which it is if unknown.

        Raises:
            ValueError: as for `directory_files.check_vocabulary`.
        """
        rows, pieces, fast = self.settings["vocabulary_size"], self.folder / "vocab.txt", self.folder / FAST_TOKENIZER
        if pieces.is_file():
            return check_vocabulary(pieces, rows, read=self.files.read)
        return check_fast_tokenizer(fast, rows, self.files.read) if fast.is_file() else rows

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer, from `vocab.txt`, or else from `tokenizer.json`.

        Raises:
            FileNotFoundError, ValueError: as for `text.tokenizers.files.read_tokenizer_file`.
        """
        return read_tokenizer_file(find_tokenizer_file(self.folder), read=self.files.read)

    @cached_property
    def _whole(self) -> Path:
        """The folder with the tensors of the whole model."""
        return find_base(self.folder, self._base) if is_adapter(self.folder) else self.folder

    @cached_property
    def opened(self) -> OpenedModel:
        """The model whose files fit together.

        Raises:
            FileNotFoundError: the folder, its config.json, its model.safetensors or an adapter's base model is missing.
            ValueError: a file is damaged, does not fit the others or is of an unknown family; the message names it.
        """
        config, source = self.stored_config, str(self.source)
        shape, table = read_shape(config, source), find_table_of(config, source)
        stored = resolve_names(config, table, open_model_tensors(self._whole, self.files))
        if stored.tied is not None:
            config = config | {TIED_FIELD: stored.tied}
        tensors: StoredTensors | AdaptedTensors = stored.tensors
        if self._whole != self.folder:
            _check_base(config, self.source, self._whole / "config.json")
            tensors = open_adapted(self.folder, stored.tensors, table, config)
        check_sizes(shape, table, tensors)
        check_leftovers(shape, table, tensors)
        check_memory(tensors)
        _ = self.num_pieces  # raises if the tokenizer does not fit the model
        return OpenedModel(config, tensors, stored.remarks)


def check_model_directory(folder: Path) -> ModelDirectory:
    """Check that a model directory is complete and has a tokenizer, and return it, to be loaded.

    The weights are not decoded; if a manifest lists the files, their digests are compared with it.

    Raises:
        FileNotFoundError: the folder or a file of it is missing.
        ValueError: a file is damaged, or does not fit the others.
    """
    directory = ModelDirectory(folder)
    directory.verify()
    _ = directory.opened, directory.tokenizer
    return directory


def check_words_head(model: str | Path | ModelDirectory) -> None:
    """Raise ValueError unless a directory has the bag-of-words layers that `pooling: bag_of_words` starts from."""
    directory = ModelDirectory.of(model)
    for layer in WORDS_TRANSFORM.values():
        if (name := f"{layer}.weight") not in directory.opened.tensors:
            raise ValueError(
                f"`pooling: bag_of_words` must go on from the head of a bag of words. Received: {directory}, without "
                f"`{name}`. Pre-train with `pretraining.bag_of_words` above 0, or choose another pooling."
            )


def check_classifier(model: str | Path | ModelDirectory) -> None:
    """Raise ValueError unless a directory has the head of a classification or a regression."""
    directory = ModelDirectory.of(model)
    config, tensors, _ = directory.opened
    table = find_table_of(config, str(directory.source))
    kernel = f"{table.name_heads(CLASSIFIER_HEAD, 'ForSequenceClassification')['classifier']}.weight"
    if kernel not in tensors:
        raise ValueError(
            f"A teacher must be fine-tuned on the task of its student. Received: {directory}, without `{kernel}`. "
            "Fine-tune it first with `kbf finetune`."
        )


def check_masked_lm(model: str | Path | ModelDirectory) -> dict[str, Any]:
    """Check that the files of a model directory fit together, and that it has a masked-LM head.

    Raises:
        FileNotFoundError, ValueError: as for `ModelDirectory.opened`, or there is no such head.
    """
    directory = ModelDirectory.of(model)
    (config, tensors, _), source = directory.opened, str(directory.source)
    shape, table = read_shape(config, source), find_table_of(config, source)
    names = table.name_heads(MASKED_LM_HEAD | MASKED_LM_EXTENSION, "ForMaskedLM")
    layers = _MASKED_LM_SIZES | (_EXTENSION_SIZES if shape.mlm_extension_dim else {})
    absent = {"mlm_transform/dense": not shape.head_bias, "mlm_transform/layer_norm": not shape.norm_bias}
    for layer, parts in layers.items():
        for part, sizes in parts.items():
            if part == "bias" and absent.get(layer):
                continue
            name = f"{names[layer]}.{part}"
            if name not in tensors:
                raise ValueError(
                    f"A model must have a masked-LM head to score tokens. Received: {directory}, without `{name}`. "
                    "Take what `kbf pretrain` made of the objective mlm, a BertForMaskedLM or a BertForPreTraining."
                )
            _check_shape(name, tuple(getattr(shape, size) for size in sizes), tensors)
    return directory.settings


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
