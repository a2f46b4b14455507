"""Read safetensors files without their library, which gives NumPy no bfloat16; write them with it.

The whole header is checked before any tensor is read. A large model is sharded, and
`model.safetensors.index.json` maps tensors to files. Source of the format:
https://github.com/huggingface/safetensors, README.md, "Format"; of the index: huggingface_hub, serialization/_base.py.
"""

import math
import mmap
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from safetensors.numpy import save_file

from keras_bert_flow.console.terminal import abridge
from keras_bert_flow.files.documents import parse_json, read_json
from keras_bert_flow.results.artifacts import OpenedFiles, follow_umask, release

# Base class of lazily read tensors.


class TensorMapping(Mapping[str, np.ndarray]):
    """Mapping of names to tensors that are read lazily; names and shapes are known without reading.

    Attributes:
        shapes: name → shape.
        path: the file to name in messages.
    """

    shapes: dict[str, tuple[int, ...]]
    path: Path

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


FILE, INDEX, PICKLE = "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"
SUFFIX = ".safetensors"
FLOAT32, BFLOAT16 = "float32", "bfloat16"
MAX_HEADER_BYTES = 16 << 20  # a BERT of 24 layers has 50 kB
CHUNK_BYTES = 4 << 20  # held while looking for NaN
_LENGTH_BYTES = 8
FLOATS: dict[str, np.dtype] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}
_INTEGERS: dict[str, np.dtype] = {
    f"{letter}{bits}": np.dtype(f"<{letter.lower()}{bits // 8}") for letter in "IU" for bits in (8, 16, 32, 64)
}
_DTYPES: dict[str, np.dtype] = FLOATS | _INTEGERS | {"BOOL": np.dtype("?")}
READABLE = tuple(_DTYPES)
# Bits per element; dtypes that NumPy lacks may occur in a file, but are not read.
_BITS = {name: 8 * dtype.itemsize for name, dtype in _DTYPES.items()} | {
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "C64": 64,
}
STORABLE = tuple(_BITS)
_BFLOAT16_EXPONENT = 0x7F80


class _Place(NamedTuple):
    path: Path
    dtype: str
    shape: tuple[int, ...]
    start: int  # bytes from the beginning of the file
    content: mmap.mmap | bytes  # of the file


class StoredTensors(TensorMapping):
    """The tensors of one file or of several shards, read lazily in their own dtypes; bfloat16 as float32.

    Attributes:
        path: the file, or the index of the shards.
        shapes: name → shape.
        dtypes: name → dtype, as safetensors names it.
    """

    def __init__(self, path: Path, places: dict[str, _Place]):
        self.path, self.shapes = path, {name: place.shape for name, place in places.items()}
        self.dtypes = {name: place.dtype for name, place in places.items()}
        self._places = places

    def __getitem__(self, name: str) -> np.ndarray:
        place = self._places[name]
        array = np.frombuffer(place.content, _DTYPES[place.dtype], math.prod(place.shape), place.start)
        # A copy, as a backend may keep the array that it is given, and the file may change.
        array = widen_bfloat16(array) if place.dtype == "BF16" else array.copy()
        release(place.content)
        return array.reshape(place.shape)

    def rename(self, new_name: Callable[[str], str]) -> "StoredTensors":
        """Return the same tensors under other names; ValueError if two get the same name."""
        places: dict[str, _Place] = {}
        for name, place in self._places.items():
            if new_name(name) in places:
                raise ValueError(
                    f"{self.path}: each tensor must appear once. Received: {abridge(new_name(name))}, twice, once "
                    "under another spelling. Remove one."
                )
            places[new_name(name)] = place
        return StoredTensors(self.path, places)

    def select(self, sources: Mapping[str, str]) -> "StoredTensors":
        """Return a selection of the tensors: new name → name here."""
        return StoredTensors(self.path, {name: self._places[source] for name, source in sources.items()})

    def squeeze(self, name: str) -> "StoredTensors":
        """Return the same tensors, one of them without its last axis if that has length 1 and is the third."""
        place = self._places.get(name)
        if place is None or len(place.shape) != 3 or place.shape[-1] != 1:
            return self
        return StoredTensors(self.path, self._places | {name: place._replace(shape=place.shape[:-1])})

    def check_finite(self) -> None:
        """Raise ValueError if a floating-point tensor holds NaN or infinity; reads a few megabytes at a time."""
        for name, place in self._places.items():
            if place.dtype not in FLOATS:
                continue
            dtype, size = FLOATS[place.dtype], math.prod(place.shape)
            for offset in range(0, size * dtype.itemsize, CHUNK_BYTES):
                count = min(CHUNK_BYTES // dtype.itemsize, size - offset // dtype.itemsize)
                values = np.frombuffer(place.content, dtype, count, place.start + offset)
                if place.dtype == "BF16":
                    is_finite = not (values & _BFLOAT16_EXPONENT == _BFLOAT16_EXPONENT).any()
                else:
                    is_finite = bool(np.isfinite(values).all())
                if not is_finite:
                    raise ValueError(
                        f"{place.path}: weights must be finite. Received: {abridge(name)} with NaN or infinity. "
                        "Copy it again."
                    )
                release(place.content)


def write_tensors(path: Path, tensors: Mapping[str, np.ndarray], dtype: str = FLOAT32) -> None:
    """Write tensors as float32, or rounded to float16 or bfloat16."""
    kind = find_dtype(dtype)
    arrays = {name: np.ascontiguousarray(array, dtype=kind) for name, array in tensors.items()}
    # transformers refuses a file whose metadata does not name a framework.
    save_file(arrays, path, metadata={"format": "pt"})
    follow_umask(path)


def find_dtype(name: str) -> np.dtype:
    """Return the NumPy dtype with a name; bfloat16 comes from ml_dtypes, as NumPy lacks it."""
    if name == BFLOAT16:
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def open_model_tensors(folder: Path, files: OpenedFiles | None = None) -> StoredTensors:
    """Open the tensors of a model directory, of every dtype; those that NumPy lacks cannot be read.

    Args:
        files: maps the files, each opened once.
    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a file is damaged.
    """
    path, index = folder / FILE, folder / INDEX
    if path.is_file():
        return open_tensors(path, STORABLE, files)
    if not index.is_file():
        raise FileNotFoundError(
            f"A model directory must hold {FILE}. Received: {folder}, without it. {_advise(folder)}"
        )
    shards = _read_index(index)
    tensors = [open_tensors(folder / name, STORABLE, files) for name in sorted({*shards.values()})]
    places: dict[str, _Place] = {}
    for stored in tensors:
        if twice := places.keys() & stored.keys():
            raise ValueError(f"{index}: each tensor must appear once. Received: {abridge(min(twice))}, twice.")
        places |= stored._places
    if absent := sorted(shards.keys() - places.keys()):
        raise ValueError(
            f"{index}: must name tensors that are there. Received: {abridge(absent[0])}, which is not in "
            f"{shards[absent[0]]}. Copy the files again."
        )
    return StoredTensors(index, places)


def _advise(folder: Path) -> str:
    """Return advice about a folder without safetensors, for an error message."""
    if (folder / PICKLE).is_file():
        return (
            f"No pickle is read. Where {PICKLE} can be trusted, transformers turns it into safetensors: "
            f'python -c "from transformers import AutoModel as M; M.from_pretrained({str(folder)!r}).save_pretrained('
            "'converted')\"."
        )
    return "Check the path."


def _read_index(index: Path) -> dict[str, str]:
    """Return tensor → file name; ValueError unless these are files in the same folder."""
    try:
        content = read_json(index)
        shards = content["weight_map"]
        names = shards.values()
        if not all(isinstance(name, str) and name == Path(name).name and name.endswith(SUFFIX) for name in names):
            raise ValueError("weight_map must name files beside it")
    except (KeyError, TypeError, AttributeError):
        raise ValueError(f"{index}: must have a weight_map, of tensors and files. Copy it again.") from None
    except ValueError as error:
        raise ValueError(f"{index}: not the index of a model ({error}). Copy it again.") from None
    missing = sorted(name for name in {*names} if not (index.parent / name).is_file())
    if missing:
        raise FileNotFoundError(
            f"A model must be whole. Received: {index.parent}, without {missing[0]}. Copy that too."
        )
    return shards


def open_floats(path: Path) -> StoredTensors:
    """Open the floating-point tensors of a file; errors as for `open_tensors`."""
    return open_tensors(path, tuple(FLOATS))


def open_tensors(path: Path, dtypes: tuple[str, ...] = READABLE, files: OpenedFiles | None = None) -> StoredTensors:
    """Map the tensors of some dtypes, after checking the header against the size of the file.

    Args:
        files: maps the file, opened once.
    Raises:
        OSError: the file cannot be read.
        ValueError: it is no safetensors file, or is incomplete.
    """
    try:
        places = _read_header(path, (files or OpenedFiles()).map(path))
    except ValueError as error:
        raise ValueError(f"{path}: not a whole safetensors file ({error}). Copy or save it again.") from None
    return StoredTensors(path, {name: place for name, place in places.items() if place.dtype in dtypes})


def _read_header(path: Path, content: mmap.mmap | bytes) -> dict[str, _Place]:
    """Return the locations of all tensors; ValueError unless they fill the file without gaps or overlaps."""
    length = int.from_bytes(content[:_LENGTH_BYTES], "little")
    if length > MAX_HEADER_BYTES:
        raise ValueError(f"its header has {length:,} bytes, over {MAX_HEADER_BYTES:,}")
    entries = parse_json(content[_LENGTH_BYTES : _LENGTH_BYTES + length])
    if not isinstance(entries, dict):
        raise ValueError("its header is no JSON object")
    metadata = entries.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError("its metadata is no JSON object of texts")
    end = start = _LENGTH_BYTES + length
    places = {}
    for name, (first, last, dtype, shape) in sorted(_check_entries(entries), key=lambda item: item[1][:2]):
        if start + first != end:
            raise ValueError(f"there is a gap or an overlap before {abridge(ascii(name))}")
        places[name], end = _Place(path, dtype, shape, end, content), start + last
    if end != len(content):
        raise ValueError(f"its tensors need {end:,} bytes, and it has {len(content):,}")
    return places


def _check_entries(entries: Mapping[str, object]) -> Iterator[tuple[str, tuple[int, int, str, tuple[int, ...]]]]:
    """Check each tensor's entry, and yield its name, start and end offset, dtype and shape."""
    for name, entry in entries.items():
        shown = abridge(ascii(name))
        if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
            raise ValueError(f"{shown} must have dtype, shape and data_offsets")
        dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        if not isinstance(dtype, str) or dtype not in _BITS:
            raise ValueError(f"{shown} has the unknown dtype {abridge(ascii(dtype))}")
        # Python's integers do not overflow, but a product of a million of them is slow.
        are_counts = all(
            isinstance(values, list)
            and len(values) <= 32
            and all(type(value) is int and 0 <= value < 1 << 63 for value in values)
            for values in (shape, offsets)
        )
        if not are_counts or len(offsets) != 2:
            raise ValueError(f"shape and data_offsets of {shown} must be whole numbers from 0")
        first, last = offsets
        if 8 * (last - first) != math.prod(shape) * _BITS[dtype]:
            raise ValueError(f"{shown} has another number of bytes than its shape")
        yield name, (first, last, dtype, tuple(shape))
