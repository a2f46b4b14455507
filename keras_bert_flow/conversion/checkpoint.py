"""A model between two formats: its settings, named tensors and tokenizer, without Keras."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from keras_bert_flow.conversion.codecs.tensors import TensorMapping
from keras_bert_flow.json_documents import read_json_object
from keras_bert_flow.text.tokenizers.loaded import SETTINGS

Maker = Callable[[], np.ndarray]


class Tensors(TensorMapping):
    """Tensors that are each made in a way of its own.

    Args:
        makers: name → what makes it.
        shapes, path: see `TensorMapping`.
    """

    def __init__(self, makers: Mapping[str, Maker], shapes: Mapping[str, tuple[int, ...]], path: Path):
        super().__init__(shapes, path)
        self._makers = makers

    def __getitem__(self, name: str) -> np.ndarray:
        return self._makers[name]()

    @classmethod
    def select(cls, tensors: TensorMapping, sources: Mapping[str, str]) -> "Tensors":
        """Return tensors of others under new names.

        Args:
            sources: name → that of the other.
        """
        makers = {name: partial(tensors.__getitem__, source) for name, source in sources.items()}
        return cls(makers, {name: tensors.shapes[source] for name, source in sources.items()}, tensors.path)


@dataclass(frozen=True)
class Checkpoint:
    """What a directory of any format holds.

    Attributes:
        config: fields of Hugging Face's `config.json`.
        tensors: by Hugging Face's names, those of the encoder without a prefix.
        tokenizer: its files, by the names that Hugging Face gives them; content, where it was made here.
        companions: further files, such as those of `sentence_transformers`, by their names there; content, where it
            was made here.
        remarks: what was done to read it, a clause each.
    """

    config: Mapping[str, Any]
    tensors: Tensors
    tokenizer: Mapping[str, Path | bytes] = field(default_factory=dict)
    companions: Mapping[str, Path | bytes] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    def read_settings(self) -> dict[str, Any]:
        """Return the content of `tokenizer_config.json`; empty where there is none. ValueError if it is no object."""
        settings = self.tokenizer.get(SETTINGS, b"{}")
        return json.loads(settings) if isinstance(settings, bytes) else read_json_object(settings)

    def keeps_case(self) -> bool:
        """Say whether the vocabulary keeps case, by `tokenizer_config.json`."""
        return self.read_settings().get("do_lower_case") is False
