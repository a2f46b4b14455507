"""Vectors of the lines of a file, in memory or in an index folder that is built once."""

import hashlib
import json
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from keras_bert_flow.artifacts import KEY_LENGTH, canonical_json, file_digest, publishing
from keras_bert_flow.input_states import NOTHING_HELD, InputStates
from keras_bert_flow.json_documents import read_json
from keras_bert_flow.prediction.embedding import Embedder
from keras_bert_flow.prediction.index_folder import INDEX, REMEDY, check_index, no_index
from keras_bert_flow.prediction.lines import check_lines_file, decode_line, refuse_parquet
from keras_bert_flow.prediction.nearest import unit_length
from keras_bert_flow.records.manifest import write_manifest
from keras_bert_flow.tasks.formats.bounded_reading import read_byte_lines

VECTORS, LINES = "vectors.npy", "lines.npy"
LINES_AT_ONCE = 16_384
_Vectors = TypeVar("_Vectors", bound=np.ndarray)
MODEL_FILES = ("config.json", "vocab.txt", "tokenizer_config.json")


@dataclass(frozen=True)
class LineVectors:
    """One vector per line that is not blank.

    Attributes:
        path: the file.
        lines: int64, (rows, 2). The number of each line, from 1, and its byte offset.
        vectors: float32, (rows, hidden), of length 1; may be memory-mapped.
        state: of the file from before it was read.
    """

    path: Path
    lines: np.ndarray
    vectors: np.ndarray
    state: InputStates = NOTHING_HELD

    def read(self, rows: np.ndarray) -> list[str]:
        """Return the texts of some rows; ValueError if the file has changed."""
        with self.path.open("rb") as file:
            texts = [_read_line(file, int(self.lines[row, 1])) for row in rows]
        self.state.check()
        return texts


def load_line_vectors(
    path: str | Path,
    embedder: Embedder,
    model: str | Path,
    index: str | Path | None = None,
    follow: Callable = iter,
    state: InputStates = NOTHING_HELD,
    model_state: InputStates = NOTHING_HELD,
) -> LineVectors:
    """Return the vectors of a file's lines, from the index, which is built if it does not exist.

    Args:
        path: UTF-8, one text per line.
        model: the directory of the embedder.
        index: a folder; None keeps nothing.
        follow: takes the batches and yields them again, to show progress.
        state: of the file from before it was read.
        model_state: of the model from before it was loaded.
    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file has no text, a line is not UTF-8, the index is of other lines or another model, or the file
            or the model has changed.
    """
    path = Path(path)
    check_lines_file(path)
    refuse_parquet(path)
    if index is None:
        lines = _find_lines(path)
        vectors = _embed(path, lines, embedder, np.empty, follow)
        state.check()
        return LineVectors(path, lines, vectors, state)
    inputs = state | model_state
    index, facts = Path(index), _describe(path, embedder, Path(model))
    if not index.exists():
        with publishing(index) as work:
            _write_index(work, path, facts, embedder, follow)
            inputs.check()
    found = open_index(index, path, facts, embedder.hidden_dim)
    inputs.check()
    return replace(found, state=state)


def _describe(path: Path, embedder: Embedder, model: Path) -> dict[str, Any]:
    """Return what an index depends on: if any of this changes, it is rejected, not rebuilt."""
    # A `tokenizer.json` counts only where there is no `vocab.txt`: `read_tokenizer`.
    names = [*MODEL_FILES, *([] if (model / "vocab.txt").is_file() else ["tokenizer.json"])]
    names += sorted(path.name for path in model.glob("model*.safetensors"))
    files = {name: file_digest(model / name) for name in names if (model / name).is_file()}
    cut = {"pooling": embedder.model.pooling, "sequence_length": embedder.sequence_length}
    return {"lines": file_digest(path), "model": files | cut}


def _write_index(folder: Path, path: Path, facts: Mapping[str, Any], embedder: Embedder, follow: Callable) -> None:
    def allocate(shape: tuple[int, int], dtype: type) -> np.memmap:
        return np.lib.format.open_memmap(folder / VECTORS, "w+", dtype, shape)

    lines = _find_lines(path)
    np.save(folder / LINES, lines)
    _embed(path, lines, embedder, allocate, follow).flush()
    (folder / INDEX).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    key = hashlib.sha256(canonical_json(facts).encode()).hexdigest()[:KEY_LENGTH]
    counters = {"lines": len(lines)} | embedder.cut_texts.counters
    write_manifest(folder, "index", key, facts, {"lines": facts["lines"]}, counters)


def open_index(folder: Path, path: Path, facts: Mapping[str, Any], hidden_dim: int) -> LineVectors:
    """Open the memory-mapped vectors of an index.

    Args:
        path: the file of lines.
        facts: what the index must depend on.
    Raises:
        ValueError: the index is of other lines or another model, or damaged.
    """
    check_index(folder)
    try:
        known = read_json(folder / INDEX)
        changed = [f"other {name}" for name in facts if known.get(name) != facts[name]]
        lines, vectors = (np.lib.format.open_memmap(folder / name, "r") for name in (LINES, VECTORS))
        is_whole = (lines.dtype, lines.shape) == (np.int64, (len(vectors), 2))
        is_whole &= (vectors.dtype, vectors.shape) == (np.float32, (len(lines), hidden_dim))
    except Exception:  # NumPy reads a header with Python's tokenizer, which has errors of its own
        raise no_index(folder) from None
    if changed:
        raise ValueError(
            f"An index must be of these lines and this model. Received: {folder}, of {' and '.join(changed)}. {REMEDY}"
        )
    if not is_whole or not _are_places(lines[:, 1], path.stat().st_size) or not _are_finite(vectors):
        raise no_index(folder)
    return LineVectors(path, lines, vectors)


def _are_places(offsets: np.ndarray, file_bytes: int) -> bool:
    return bool((np.diff(offsets) > 0).all()) and offsets[0] >= 0 and offsets[-1] < file_bytes


def _are_finite(vectors: np.ndarray) -> bool:
    starts = range(0, len(vectors), LINES_AT_ONCE)
    return all(np.isfinite(vectors[start : start + LINES_AT_ONCE]).all() for start in starts)


def _find_lines(path: Path) -> np.ndarray:
    """Return the number and byte offset of each line that is not blank; only a line feed ends one."""
    found, offset = array("q"), 0
    for number, line in enumerate(read_byte_lines(str(path), packed_as=()), 1):
        text = decode_line(line, f"{path}, line {number}")
        if text.strip():
            found.extend((number, offset))
        offset += len(line)
    if not found:
        raise ValueError(f"There must be a line to find. Received: {path}, which holds no text. Check the path.")
    return np.array(found, dtype=np.int64).reshape(-1, 2)


def _embed(
    path: Path, lines: np.ndarray, embedder: Embedder, allocate: Callable[..., _Vectors], follow: Callable
) -> _Vectors:
    vectors = allocate((len(lines), embedder.hidden_dim), np.float32)
    with path.open("rb") as file:
        for start in range(0, len(lines), LINES_AT_ONCE):
            texts = [_read_line(file, offset) for offset in lines[start : start + LINES_AT_ONCE, 1].tolist()]
            vectors[start : start + len(texts)] = unit_length(embedder.embed(texts, follow, tell=False))
    embedder.tell_cut_texts()
    return vectors


def _read_line(file, offset: int) -> str:
    file.seek(offset)
    return decode_line(file.readline(), file.name).strip()
