"""Convert a model to another format, without Keras; the result is read back and compared before publishing."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from keras_bert_flow.artifacts import publishing
from keras_bert_flow.conversion.arithmetic import set_gelu, set_mlm_epsilon, set_mlm_gelu
from keras_bert_flow.conversion.checkpoint import Checkpoint
from keras_bert_flow.conversion.codecs.safetensors_file import find_dtype
from keras_bert_flow.conversion.formats.adapter import Adapter
from keras_bert_flow.conversion.formats.registry import find_format, recognise
from keras_bert_flow.conversion.surgery import keep_layers, set_positions, set_tied, set_vocabulary
from keras_bert_flow.input_states import hold

HUGGING_FACE = "huggingface"


@dataclass(frozen=True)
class Conversion:
    """Summary of a conversion, done or planned.

    Attributes:
        source, target: names of the formats.
        architecture: class of `transformers`.
        tensors: number of tensors.
        parameters: number of parameters.
        remarks: what was changed or left out, one clause each.
    """

    source: str
    target: str
    architecture: str
    tensors: int
    parameters: int
    remarks: tuple[str, ...]


def convert(
    path: str | Path,
    output: str | Path,
    target: str = HUGGING_FACE,
    source: str | None = None,
    dtype: str = "float32",
    cased: bool | None = None,
    dry_run: bool = False,
    positions: int | None = None,
    layers: Sequence[int] | None = None,
    vocabulary: str | Path | None = None,
    tied: bool | None = None,
    gelu: str | None = None,
    mlm_gelu: str | None = None,
    mlm_epsilon: float | None = None,
    base: str | Path | None = None,
) -> Conversion:
    """Convert a model to another format; writes nothing if any part cannot be written.

    Args:
        path: a model folder, or the prefix of a checkpoint.
        output: a folder that does not exist yet.
        target: the format to write, one of `formats.registry.FORMATS`.
        source: the format of `path`; by default detected from its files.
        dtype: dtype of the weights written.
        cased: whether the vocabulary keeps case, if the source does not say so.
        dry_run: read and check everything, and write nothing.
        positions, layers, vocabulary, tied: changes of the result's shape, if any; see `surgery`.
        gelu, mlm_gelu, mlm_epsilon: changes of the result's arithmetic, if any; see `arithmetic`.
        base: the base model of an adapter, if it is not the one that the adapter names.
    Raises:
        FileNotFoundError: a file is missing.
        FileExistsError: `output` exists.
        ValueError: a file is damaged or changes meanwhile, or a format is unknown or cannot hold the model.
    """
    path, name = Path(path), source or recognise(Path(path))
    inputs = hold(*([path] if path.exists() else path.parent.glob(f"{path.name}.*")))
    known = find_format(target)
    if dtype not in known.dtypes:
        raise ValueError(f"Numbers of {known.title} must be {' or '.join(known.dtypes)}. Received: dtype={dtype}.")
    checkpoint = _read(path, name, cased, base)
    if vocabulary is not None:
        is_cased = checkpoint.keeps_case() if cased is None else cased
        checkpoint = set_vocabulary(checkpoint, vocabulary, is_cased)
    changes: tuple[tuple[Callable[..., Checkpoint], Any], ...] = (
        (keep_layers, layers),
        (set_positions, positions),
        (set_tied, tied),
        (set_gelu, gelu),
        (set_mlm_gelu, mlm_gelu),
        (set_mlm_epsilon, mlm_epsilon),
    )
    for change, value in changes:
        if value is not None:
            checkpoint = change(checkpoint, value)
    known.check(checkpoint)
    remarks = checkpoint.remarks + ((f"numbers rounded to {dtype}",) if dtype != "float32" else ())
    for _ in _walk(checkpoint, dtype):  # checks every number before anything is written
        pass
    if not dry_run:
        with publishing(output) as folder:
            remarks += known.write(checkpoint, folder, dtype)
            _compare(checkpoint, known.read(folder, cased), dtype)
            inputs.check()
    architecture = (checkpoint.config.get("architectures") or ["?"])[0]
    parameters = sum(math.prod(shape) for shape in checkpoint.tensors.shapes.values())
    return Conversion(name, target, architecture, len(checkpoint.tensors), parameters, remarks)


def _read(path: Path, name: str, cased: bool | None, base: str | Path | None) -> Checkpoint:
    """Read a model in a format; an adapter together with its base."""
    source = find_format(name)
    if base is None:
        return source.read(path, cased)
    if not isinstance(source, Adapter):
        raise ValueError(f"`base` must go with an adapter. Received: {path}, of the format {name}. Leave it out.")
    return source.read(path, cased, base)


def _walk(checkpoint: Checkpoint, dtype: str) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the tensors rounded to the dtype to write; ValueError if one is not finite in it."""
    kind = find_dtype(dtype)
    for name, value in checkpoint.tensors.items():
        with np.errstate(over="ignore"):
            rounded = value.astype(kind).astype(np.float32)
        if not np.isfinite(rounded).all():
            raise ValueError(f"Weights must be finite in {dtype}. Received: {name}, which is not. Choose another one.")
        yield name, rounded


def _compare(wanted: Checkpoint, found: Checkpoint, dtype: str) -> None:
    """Raise ValueError unless the model that was read back equals the one written."""
    if wanted.tensors.keys() != found.tensors.keys():
        names = sorted(wanted.tensors.keys() ^ found.tensors.keys())
        raise ValueError(f"A model must be read back as it was written. Received: {names[0]} in one of the two alone.")
    for name, value in _walk(wanted, dtype):
        if not np.array_equal(value, found.tensors[name].astype(np.float32)):
            raise ValueError(f"A model must be read back as it was written. Received: other numbers of {name}.")
