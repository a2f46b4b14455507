"""Base class of serving formats."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:  # a request is checked before Keras is imported
    from keras_bert_flow.export.served_model import ServedModel

Inputs = Mapping[str, np.ndarray]  # int64, by the names of the exported model
Run = Callable[[Inputs], dict[str, np.ndarray]]


class ExportFormat(ABC):
    """A format that a model is served in.

    Attributes:
        title: what to call it in a message.
        file: name in the folder of the file, or folder, that the runtime loads.
        runtime: package that loads it.
        packages: backend of Keras → packages that write the format there; the preferred backend comes first.
        refusals: backend → why it cannot write the format.
        has_int8: whether weights may be stored as int8.
        has_strings: whether the exported model may take texts.
    """

    title: str
    file: str
    runtime: str
    packages: Mapping[str, tuple[str, ...]]
    refusals: Mapping[str, str]
    has_int8: bool = True
    has_strings: bool = False

    @abstractmethod
    def write(self, model: "ServedModel", path: Path, int8: bool) -> None:
        """Write a model with dynamic batch and length.

        Args:
            path: of `file`, in a folder that is there.
            int8: store the weights of products as int8, and quantise what they are multiplied by as it comes.
        """

    @abstractmethod
    def load(self, path: Path, threads: int | None = None) -> Run:
        """Load what was written in its runtime, and return what computes outputs by name.

        Args:
            threads: of the processor; by default as many as the runtime takes. TensorFlow is told otherwise.
        """
