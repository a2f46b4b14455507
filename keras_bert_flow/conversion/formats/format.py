"""Base class of formats."""

from abc import ABC, abstractmethod
from pathlib import Path

from keras_bert_flow.conversion.checkpoint import Checkpoint


class Format(ABC):
    """A format in which models travel.

    Attributes:
        title: what to call it in a message.
        dtypes: of the numbers that it can hold, the usual first.
    """

    title: str
    dtypes: tuple[str, ...] = ("float32",)

    @abstractmethod
    def recognise(self, path: Path) -> bool:
        """Say whether a path is of this format, by the names of its files."""

    @abstractmethod
    def read(self, path: Path, cased: bool | None) -> Checkpoint:
        """Read all but the tensors, which are read when they are asked for.

        Args:
            cased: whether the vocabulary keeps case, where the format does not say so.
        Raises:
            FileNotFoundError: a file is missing.
            ValueError: a file is damaged or does not fit the others.
        """

    @abstractmethod
    def write(self, checkpoint: Checkpoint, folder: Path, dtype: str) -> tuple[str, ...]:
        """Write a model to a folder that is there, and return what was changed or left out, a clause each.

        Raises:
            ValueError: the format cannot hold it.
        """

    @abstractmethod
    def check(self, checkpoint: Checkpoint) -> None:
        """Raise ValueError unless the format can hold a model."""
