"""Base class of model formats, the checkpoint that they exchange, and their registry."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from keras_bert_flow.by_name import Registry
from keras_bert_flow.conversion.codecs.safetensors_file import TensorMapping
from keras_bert_flow.files.documents import read_json_object
from keras_bert_flow.text.tokenizers.files import read_word_piece
from keras_bert_flow.text.tokenizers.wordpiece import SETTINGS
from keras_bert_flow.text.vocabulary import VOCABULARY_FILE

# Format-independent form of a model: settings, named tensors and tokenizer, without Keras.

Maker = Callable[[], np.ndarray]


class Tensors(TensorMapping):
    """Tensors that are each computed by a function of their own.

    Args:
        makers: name → function that returns the tensor.
        shapes, path: see `TensorMapping`.
    """

    def __init__(self, makers: Mapping[str, Maker], shapes: Mapping[str, tuple[int, ...]], path: Path):
        self.shapes, self.path = dict(shapes), path
        self._makers = makers

    def __getitem__(self, name: str) -> np.ndarray:
        return self._makers[name]()

    @classmethod
    def select(cls, tensors: TensorMapping, sources: Mapping[str, str]) -> "Tensors":
        """Return a selection of tensors under new names.

        Args:
            sources: new name → name in `tensors`.
        """
        makers = {name: partial(tensors.__getitem__, source) for name, source in sources.items()}
        return cls(makers, {name: tensors.shapes[source] for name, source in sources.items()}, tensors.path)


@dataclass(frozen=True)
class Checkpoint:
    """The content of a model in any format.

    Attributes:
        config: fields of Hugging Face's `config.json`.
        tensors: tensors by Hugging Face's names, those of the encoder without a prefix.
        tokenizer: tokenizer files, by Hugging Face's names; paths, or bytes if generated here.
        companions: further files, such as those of `sentence_transformers`, by their names there; paths, or bytes if
            generated here.
        remarks: what was changed while reading, one clause each.
    """

    config: Mapping[str, Any]
    tensors: Tensors
    tokenizer: Mapping[str, Path | bytes] = field(default_factory=dict)
    companions: Mapping[str, Path | bytes] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    def read_settings(self) -> dict[str, Any]:
        """Return the content of `tokenizer_config.json`, or {} if there is none; ValueError if it is no object."""
        settings = self.tokenizer.get(SETTINGS, b"{}")
        return json.loads(settings) if isinstance(settings, bytes) else read_json_object(settings)

    def find_vocabulary(self) -> Path:
        """Return the `vocab.txt`; what the files beside it say holds for it."""
        vocabulary: Any = self.tokenizer[VOCABULARY_FILE]  # a path: no format generates a vocabulary file
        return vocabulary

    def keeps_case(self) -> bool:
        """Return whether the vocabulary is cased, according to the files beside it."""
        settings = self.read_settings()
        if VOCABULARY_FILE in self.tokenizer and "do_lower_case" not in settings:
            return read_word_piece(self.find_vocabulary()).cased
        return settings.get("do_lower_case") is False


class Format(ABC):
    """Base class of formats in which models are stored.

    Attributes:
        title: its name in messages.
        weights: files of weights, of which a folder of this format has one beside its `config.json`.
        dtypes: dtypes that it can hold, the usual one first.
    """

    title: str
    weights: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ("float32",)

    def recognise(self, path: Path) -> bool:
        """Return whether a path is of this format, judging by its file names."""
        return (path / "config.json").is_file() and any((path / name).is_file() for name in self.weights)

    @abstractmethod
    def read(self, path: Path, cased: bool | None) -> Checkpoint:
        """Read a model; its tensors are read lazily.

        Args:
            cased: whether the vocabulary keeps case, if the format does not say so.
        Raises:
            FileNotFoundError: a file is missing.
            ValueError: a file is damaged or does not fit the others.
        """

    @abstractmethod
    def write(self, checkpoint: Checkpoint, folder: Path, dtype: str) -> tuple[str, ...]:
        """Write a model to an existing folder, and return what was changed or left out, one clause each.

        Raises:
            ValueError: the format cannot hold it.
        """

    def check(self, checkpoint: Checkpoint) -> None:  # noqa: B027  # a format that holds every model has nothing to do
        """Raise ValueError unless the format can hold a model."""


# Registry of model formats: find one by name, or detect it from the files of a path.

FORMATS: Registry[type[Format]] = Registry(
    "A format",
    {
        "huggingface": "keras_bert_flow.conversion.formats.huggingface:HuggingFace",
        "tensorflow": "keras_bert_flow.conversion.formats.tensorflow:TensorFlow",
        "kerashub": "keras_bert_flow.conversion.formats.keras_hub:KerasHub",
        "adapter": "keras_bert_flow.conversion.formats.huggingface:Adapter",
    },
)


def recognise(path: Path) -> str:
    """Return the name of the format of a path.

    Raises:
        FileNotFoundError: the path does not exist.
        ValueError: it matches no format, or several.
    """
    found = [name for name in FORMATS if FORMATS.find(name)().recognise(path)]
    if not found and not path.exists():
        raise FileNotFoundError(f"A path must exist. Received: {path}. Check it.")
    if len(found) != 1:
        titles = " and ".join(found) or "none"
        raise ValueError(
            f"A model must be of one format, of {', '.join(FORMATS)}. Received: {path}, by its files of {titles}. "
            "Name it with --from-format, or check the path."
        )
    return found[0]
