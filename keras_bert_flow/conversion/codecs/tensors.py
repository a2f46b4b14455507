"""Base class of the tensors of a file."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np


class TensorMapping(Mapping[str, np.ndarray]):
    """Tensors by name, each read when it is asked for; their names and shapes are known without.

    Args:
        shapes: name → shape.
        path: the file to name in messages.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], path: Path):
        self.shapes, self.path = dict(shapes), path

    @abstractmethod
    def __getitem__(self, name: str) -> np.ndarray:
        """Read a tensor."""

    def __contains__(self, name: object) -> bool:
        return name in self.shapes  # by default a mapping would read the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)


def widen_bfloat16(upper_halves: np.ndarray) -> np.ndarray:
    """Return bfloat16, given as uint16, as float32, of which it is the upper half; numpy has no such type."""
    return (upper_halves.astype(np.uint32) << 16).view(np.float32)
