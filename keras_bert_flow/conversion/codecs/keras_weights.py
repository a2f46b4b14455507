"""Read and write `*.weights.h5`, the files of `keras.Model.save_weights`.

Variable `i` of a layer is the HDF5 dataset `path/of/layer/vars/i`. Source of the layout: keras 3.15,
saving/saving_lib.py, `H5IOStore`.
"""

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np

from keras_bert_flow.console.terminal import abridge
from keras_bert_flow.conversion.codecs.safetensors_file import BFLOAT16, TensorMapping, widen_bfloat16

VARIABLES = "vars"
OLD_LAYERS, LAYERS = "_layer_checkpoint_dependencies/", "layers/"  # Keras 2.13, and later versions
MAX_DATASETS = 100_000


class KerasWeights(TensorMapping):
    """The floating-point variables of a file, without the optimizer's, read lazily.

    Dtypes are those of the file, with bfloat16 as float32. Names have no `vars/`: `layers/dense/0`.
    """

    def __init__(self, path: Path, places: Mapping[str, str], shapes: Mapping[str, tuple[int, ...]]):
        self.shapes, self.path = dict(shapes), path
        self._places = places

    def __getitem__(self, name: str) -> np.ndarray:
        with _opened(self.path) as file:
            dataset = file[self._places[name]]
            if _is_bfloat16(dataset):
                return widen_bfloat16(dataset[()].view(np.uint16)).reshape(dataset.shape)
            return dataset[()]


def open_weights(path: Path) -> KerasWeights:
    """Open a file, after checking that all of its floating-point variables are stored in it.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no HDF5 file, is incomplete, or stores variables compressed or in other files.
    """
    if not path.is_file():
        raise FileNotFoundError(f"Weights must be a file. Received: {path}, which is not one. Check the path.")
    places, shapes = {}, {}
    with _opened(path) as file:
        for place in _list_datasets(file, path):
            dataset = file[place]
            layer, _, number = place.replace(OLD_LAYERS, LAYERS).rpartition(f"/{VARIABLES}/")
            if not layer.startswith(LAYERS) or not (_is_bfloat16(dataset) or dataset.dtype.kind == "f"):
                continue  # a variable of the optimizer, or a seed
            _check_dataset(dataset, place, path)
            name = f"{layer}/{number}"
            places[name], shapes[name] = place, tuple(dataset.shape)
    return KerasWeights(path, places, shapes)


def write_weights(path: Path, variables: Mapping[str, np.ndarray]) -> None:
    """Write variables in their own dtypes; names are as in `KerasWeights`."""
    with h5py.File(path, "w") as file:
        for name, value in variables.items():
            layer, _, number = name.rpartition("/")
            dataset = file.create_dataset(f"{layer}/{VARIABLES}/{number}", data=value)
            if value.dtype.name == BFLOAT16:
                dataset.attrs["dtype"] = BFLOAT16


@contextmanager
def _opened(path: Path) -> Iterator[h5py.File]:
    try:
        with h5py.File(path, "r") as file:
            yield file
    except (OSError, RuntimeError, KeyError) as error:  # h5py raises any of these for damaged files
        reason = abridge(" ".join(str(error).split()))
        raise ValueError(f"{path}: not a whole HDF5 file ({reason}). Copy or save it again.") from None


def _list_datasets(file: h5py.File, path: Path) -> list[str]:
    """Return the paths of all datasets, each once, without following links."""
    places: list[str] = []

    def collect(place, item):
        if isinstance(item, h5py.Dataset):
            places.append(place)
        return True if len(places) > MAX_DATASETS else None  # ends the walk

    if file.visititems(collect):
        raise ValueError(f"{path}: must have at most {MAX_DATASETS:,} variables. Received: more. Check the path.")
    return places


def _is_bfloat16(dataset: h5py.Dataset) -> bool:
    return str(dataset.attrs.get("dtype")) == BFLOAT16 and dataset.dtype.itemsize == 2


def _check_dataset(dataset: h5py.Dataset, place: str, path: Path) -> None:
    """Raise ValueError unless the data is stored in the file and its byte size matches the shape."""
    needed = dataset.dtype.itemsize * math.prod(dataset.shape)
    stored = dataset.id.get_storage_size()
    if dataset.is_virtual or dataset.external or not needed == stored <= os.path.getsize(path):
        raise ValueError(
            f"{path}: each variable must be in the file itself, and not compressed. Received: {abridge(ascii(place))} "
            f"of {needed:,} bytes, {stored:,} in the file. Copy or save it again."
        )
