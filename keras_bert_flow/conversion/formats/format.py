"""Base class of model formats."""

from abc import ABC, abstractmethod
from pathlib import Path

from keras_bert_flow.conversion.checkpoint import Checkpoint


class Format(ABC):
    """Base class of formats in which models are stored.

    Attributes:
        title: its name in messages.
        dtypes: dtypes that it can hold, the usual one first.
    """

    title: str
    dtypes: tuple[str, ...] = ("float32",)

    @abstractmethod
    def recognise(self, path: Path) -> bool:
        """Return whether a path is of this format, judging by its file names."""

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

    @abstractmethod
    def check(self, checkpoint: Checkpoint) -> None:
        """Raise ValueError unless the format can hold a model."""
