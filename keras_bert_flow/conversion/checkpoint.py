"""A model between two formats: its settings, named tensors and tokenizer, without Keras."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

Maker = Callable[[], np.ndarray]


class Tensors(Mapping[str, np.ndarray]):
    """Tensors by name, each made when it is asked for.

    Attributes:
        shapes: name → shape.
        path: the file to name in messages.
    """

    def __init__(
        self, makers: Mapping[str, Callable[[], np.ndarray]], shapes: Mapping[str, tuple[int, ...]], path: Path
    ):
        self._makers, self.shapes, self.path = makers, shapes, path

    def __getitem__(self, name: str) -> np.ndarray:
        return self._makers[name]()

    def __contains__(self, name: object) -> bool:
        return name in self._makers  # by default a mapping would read the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


@dataclass(frozen=True)
class Checkpoint:
    """What a directory of any format holds.

    Attributes:
        config: fields of Hugging Face's `config.json`.
        tensors: by Hugging Face's names, those of the encoder without a prefix.
        tokenizer: its files, by the names that Hugging Face gives them; content, where it was made here.
        companions: further files, such as those of `sentence_transformers`, by their names there.
        remarks: what was done to read it, a clause each.
    """

    config: Mapping[str, Any]
    tensors: Tensors
    tokenizer: Mapping[str, Path | bytes] = field(default_factory=dict)
    companions: Mapping[str, Path] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
