"""Base class of lazily read tensors."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np


class TensorMapping(Mapping[str, np.ndarray]):
    """Mapping of names to tensors that are read lazily; names and shapes are known without reading.

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
        return name in self.shapes  # the default of `Mapping` would read the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)


def widen_bfloat16(upper_halves: np.ndarray) -> np.ndarray:
    """Convert bfloat16, given as uint16, to float32, whose upper half it is; NumPy has no bfloat16."""
    return (upper_halves.astype(np.uint32) << 16).view(np.float32)
