"""Read and write `model.safetensors`."""

from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from keras_bert_flow.artifacts import follow_umask
from keras_bert_flow.json_documents import parse_json

DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16}


def write_tensors(path: Path, tensors: dict[str, np.ndarray]) -> None:
    """Write float32 tensors."""
    arrays = {name: np.ascontiguousarray(array, dtype=np.float32) for name, array in tensors.items()}
    # transformers refuses a file that does not say for which framework it is.
    save_file(arrays, path, metadata={"format": "pt"})
    follow_umask(path)


def read_tensors(path: Path) -> dict[str, np.ndarray]:
    """Read the floating-point tensors of a file as float32; others, such as `position_ids`, are left out.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is damaged, or holds NaN or infinity.
    """
    entries, start = _read_header(path)
    content = np.memmap(path, np.uint8, "r", offset=0)  # a page is in memory only once it is used
    arrays = ((name, _decode(entry, content[start:])) for name, entry in entries.items())
    tensors = {name: array for name, array in arrays if array is not None}
    for name, array in tensors.items():
        if not np.isfinite(array).all():
            raise ValueError(f"{path}: weights must be finite. Received: {name} with NaN or infinity. Copy it again.")
    return tensors


def read_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor from the header alone; errors as of `read_tensors`."""
    return {name: tuple(entry["shape"]) for name, entry in _read_header(path)[0].items()}


def _read_header(path: Path) -> tuple[dict[str, dict], int]:
    """Return dtype, shape and place of each tensor, and where the tensors begin.

    The library has checked by then that the tensors fill the file without a gap and overlap nowhere.
    """
    if not path.is_file():
        raise FileNotFoundError(
            f"A model directory must hold model.safetensors. Received: {path.parent}, without it. Check the path."
        )
    try:
        with safe_open(path, framework="numpy"), open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            entries = parse_json(file.read(length))
    except (SafetensorError, ValueError, OverflowError) as error:
        raise ValueError(f"{path}: not a whole safetensors file ({error}). Copy or save it again.") from None
    entries.pop("__metadata__", None)
    return entries, 8 + length


def _decode(entry: dict, content: np.ndarray) -> np.ndarray | None:
    data = content[slice(*entry["data_offsets"])]
    if entry["dtype"] == "BF16":  # numpy has no such type: these are the upper halves of float32
        array = (np.frombuffer(data, dtype="<u2").astype(np.uint32) << 16).view(np.float32)
    elif entry["dtype"] in DTYPES:
        array = np.frombuffer(data, dtype=DTYPES[entry["dtype"]]).astype(np.float32, copy=False)
    else:
        return None
    return array.reshape(entry["shape"])
