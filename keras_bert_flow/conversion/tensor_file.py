"""Read and write `model.safetensors`."""

from pathlib import Path

import numpy as np
from safetensors import SafetensorError, deserialize
from safetensors.numpy import save_file

from keras_bert_flow.artifacts import follow_umask

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
    if not path.is_file():
        raise FileNotFoundError(f"A model directory must hold model.safetensors. Received: {path.parent}, without it.")
    try:
        entries = deserialize(path.read_bytes())
    except SafetensorError as error:
        raise ValueError(f"{path}: not a whole safetensors file ({error}). Copy or save it again.") from None
    arrays = ((name, _decode(entry)) for name, entry in entries)
    tensors = {name: array for name, array in arrays if array is not None}
    for name, array in tensors.items():
        if not np.isfinite(array).all():
            raise ValueError(f"{path}: weights must be finite. Received: {name} with NaN or infinity. Copy it again.")
    return tensors


def _decode(entry: dict) -> np.ndarray | None:
    if entry["dtype"] == "BF16":  # numpy has no such type: these are the upper halves of float32
        array = (np.frombuffer(entry["data"], dtype="<u2").astype(np.uint32) << 16).view(np.float32)
    elif entry["dtype"] in DTYPES:
        array = np.frombuffer(entry["data"], dtype=DTYPES[entry["dtype"]]).astype(np.float32, copy=False)
    else:
        return None
    return array.reshape(entry["shape"])
