"""Base class of serving formats (ONNX, SavedModel, LiteRT), and their registry."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from keras_bert_flow.by_name import Registry

if TYPE_CHECKING:
    from keras_bert_flow.export.served_model import ServedModel


Inputs = Mapping[str, np.ndarray]  # int64, by the names of the exported model
Run = Callable[[Inputs], dict[str, np.ndarray]]


class ExportFormat(ABC):
    """Base class of formats for serving a model.

    Attributes:
        title: its name in messages.
        file: name of the file, or folder, that the runtime loads.
        runtime: package that loads it.
        packages: Keras backend → packages that write the format on it; the preferred backend comes first.
        refusals: backend → why it cannot write the format.
        oldest: backend → its oldest release that can, where that is not every one that this project takes.
        has_int8: whether weights may be stored as int8.
        has_strings: whether the exported model may take texts.
    """

    title: str
    file: str
    runtime: str
    packages: Mapping[str, tuple[str, ...]]
    refusals: Mapping[str, str]
    oldest: Mapping[str, str] = {}
    has_int8: bool = True
    has_strings: bool = False

    @abstractmethod
    def write(self, model: "ServedModel", path: Path, int8: bool) -> None:
        """Write a model with dynamic batch size and sequence length.

        Args:
            path: path of `file`, in an existing folder.
            int8: store the weights of matrix products as int8, and quantise activations dynamically.
        """

    @abstractmethod
    def load(self, path: Path, threads: int | None = None) -> Run:
        """Load the exported file in its runtime, and return a function that computes outputs by name.

        Args:
            threads: number of CPU threads; by default the runtime's choice. TensorFlow's threads are set elsewhere.
        """


# Registry of serving formats.

FORMATS: Registry[type[ExportFormat]] = Registry(
    "A serving format",
    {
        "onnx": "keras_bert_flow.export.onnx_file:Onnx",
        "saved_model": "keras_bert_flow.export.tensorflow_formats:SavedModel",
        "litert": "keras_bert_flow.export.tensorflow_formats:LiteRT",
    },
)


def find_export_format(name: str) -> ExportFormat:
    """Return the format with a name.

    Raises:
        ValueError: there is no such format.
    """
    return FORMATS.find(name)()
