"""Semantic search in the lines of a file."""

import hashlib
import json
import logging
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from keras_bert_flow.files.documents import read_json
from keras_bert_flow.files.inputs import NOTHING_HELD, InputStates, hold
from keras_bert_flow.files.paths import check_local
from keras_bert_flow.prediction.lines import (
    INDEX,
    REMEDY,
    check_index,
    check_lines_file,
    decode_line,
    list_items,
    no_index,
    read_until_mistake,
    refuse_parquet,
)
from keras_bert_flow.prediction.predictors import Embedder
from keras_bert_flow.results.artifacts import KEY_LENGTH, canonical_json, file_digest, publishing
from keras_bert_flow.results.manifest import write_manifest
from keras_bert_flow.tasks.formats.rows import read_byte_lines

# Exact nearest-neighbour search by cosine, with the result of a search in float64 over all vectors.

ROWS_AT_ONCE = 16_384  # with 256 queries their cosines are 16 MB
QUERIES_AT_ONCE = 256
ROUNDING = 2.0**-24  # relative, of float32


def unit_length(vectors: np.ndarray) -> np.ndarray:
    """Normalise each vector, (..., hidden), to length 1, float32; zero vectors stay 0."""
    exact = np.asarray(vectors, dtype=np.float64)
    lengths = np.linalg.norm(exact, axis=-1, keepdims=True)
    return (exact / np.where(lengths == 0, 1, lengths)).astype(np.float32)


def find_nearest(queries: np.ndarray, vectors: np.ndarray, top: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of the `top` nearest vectors of each query and their cosines, nearest first.

    Products in float32 choose a few candidates, with a margin for rounding; these are measured in float64, each on its
    own. So the result does not depend on `ROWS_AT_ONCE`, and equal vectors are in index order.

    Args:
        queries: float32, (queries, hidden), of length 1 or 0; see `unit_length`.
        vectors: the same, (rows, hidden), may be memory-mapped; `ROWS_AT_ONCE` rows are read at a time.
        top: how many to return; all if there are fewer.
    Returns:
        int64 and float64, (queries, min(top, rows)).
    Raises:
        ValueError: `top` is below 1.
    """
    if top < 1:
        raise ValueError(f"`top` must be at least 1. Received: {top}. Ask for one hit or more.")
    blocks = [
        _search_block(queries[start : start + QUERIES_AT_ONCE], vectors, min(top, len(vectors)))
        for start in range(0, len(queries), QUERIES_AT_ONCE)
    ]
    found = [pair for block in blocks for pair in block]
    shape = (len(queries), min(top, len(vectors)))
    places = np.array([places for places, _ in found], dtype=np.int64).reshape(shape)
    return places, np.array([cosines for _, cosines in found], dtype=np.float64).reshape(shape)


def _search_block(queries: np.ndarray, vectors: np.ndarray, top: int) -> Sequence[tuple[np.ndarray, np.ndarray]]:
    best = [(np.zeros(0, np.int64), np.zeros(0)) for _ in queries]
    # A product in float32 is off by at most `hidden` roundings of 1, both for the vector kept and the one left out. The
    # lengths are off by one rounding each.
    slack = 2 * (queries.shape[1] + 4) * ROUNDING
    for start in range(0, len(vectors), ROWS_AT_ONCE):
        part = np.asarray(vectors[start : start + ROWS_AT_ONCE])
        rough = queries @ part.T  # (queries, rows)
        for number, cosines in enumerate(rough):
            places, known = best[number]
            least = known[-1] if len(known) == top else -np.inf
            if len(cosines) >= top:
                least = max(least, np.partition(cosines, -top)[-top])
            rows = np.flatnonzero(cosines >= least - slack)
            exact = _measure(queries[number], part[rows])
            places, known = np.append(places, rows + start), np.append(known, exact)
            order = np.lexsort((places, -known))[:top]
            best[number] = places[order], known[order]
    return best


def _measure(query: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return cosines in float64; unlike a matrix product, bit-identical for equal rows."""
    query, rows = query.astype(np.float64), rows.astype(np.float64)
    lengths = np.sqrt((rows * rows).sum(axis=1) * (query * query).sum())
    return (rows * query).sum(axis=1) / np.where(lengths == 0, 1, lengths)


# Vectors of the lines of a file, in memory or in an index folder that is built once.

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
    """Embed the lines of a file, and write the vectors with what they were made of."""
    lines = _find_lines(path)
    np.save(folder / LINES, lines)
    _embed(path, lines, embedder, partial(np.lib.format.open_memmap, folder / VECTORS, "w+"), follow).flush()
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
    if is_whole:
        offsets, starts = lines[:, 1], range(0, len(vectors), LINES_AT_ONCE)
        is_whole = bool((np.diff(offsets) > 0).all()) and offsets[0] >= 0 and offsets[-1] < path.stat().st_size
        is_whole = is_whole and all(np.isfinite(vectors[start : start + LINES_AT_ONCE]).all() for start in starts)
    if not is_whole:
        raise no_index(folder)
    return LineVectors(path, lines, vectors)


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
    vectors = allocate(shape=(len(lines), embedder.hidden_dim), dtype=np.float32)
    with path.open("rb") as file:
        for start in range(0, len(lines), LINES_AT_ONCE):
            texts = [_read_line(file, offset) for offset in lines[start : start + LINES_AT_ONCE, 1].tolist()]
            vectors[start : start + len(texts)] = unit_length(embedder.embed(texts, follow, tell=False))
    embedder.tell_cut_texts()
    return vectors


def _read_line(file, offset: int) -> str:
    file.seek(offset)
    return decode_line(file.readline(), file.name).strip()


_logger = logging.getLogger(__name__)


class SemanticSearch:
    """Semantic search: find the lines of a file nearest to a query by cosine, comparing all of them.

    Args:
        model: any model directory; see `Embedder`.
        lines: a file, UTF-8, one text per line; blank lines are skipped.
        index: a folder for the vectors, built if it does not exist, else read. The vectors are then memory-mapped;
            without it they are all held in memory.
        pooling: as for `Embedder`.
        follow: takes the batches of lines and yields them again, to show progress.
    Raises:
        FileNotFoundError: the model or the file is missing.
        ValueError: the file has no text or is not UTF-8; the index is of other lines or another model; the file or the
            model changes meanwhile.
    Example:
        >>> search = kbf.SemanticSearch("model", "texts.txt")
        >>> (result,) = search.search(["a dull story"], top=2)
        >>> result["hits"][0]["text"]
        'a dull story'
    """

    def __init__(
        self,
        model: str | Path,
        lines: str | Path,
        index: str | Path | None = None,
        pooling: str | None = None,
        follow: Callable = iter,
    ):
        if index is not None:
            check_local(index, "The index")
        held = hold(lines), hold(model)
        self.embedder = Embedder(model, pooling, normalize=True)
        if self.embedder.similarity != "cosine":
            _logger.warning("%s: made for the similarity %s; ranked by cosine.", model, self.embedder.similarity)
        self.lines = load_line_vectors(lines, self.embedder, model, index, follow, *held)

    def search(self, queries: Sequence[str], top: int = 5) -> list[dict[str, Any]]:
        """Find the `top` nearest lines for each query; ties are in the order of the file.

        Returns:
            For each query {"query", "hits"}; the hits are {"line", "score", "text"}, nearest first: the number of the
            line, from 1, the cosine, and the line without surrounding blanks.
        """
        queries = list(list_items(queries))
        vectors = unit_length(self.embedder.embed(queries))
        rows, cosines = find_nearest(vectors, self.lines.vectors, top)
        return [
            {
                "query": query,
                "hits": [
                    {"line": line, "score": score, "text": text}
                    for line, score, text in zip(
                        self.lines.lines[found, 0].tolist(), scores.tolist(), self.lines.read(found), strict=True
                    )
                ],
            }
            for query, found, scores in zip(queries, rows, cosines, strict=True)
        ]

    def search_chunks(
        self, chunks: Iterable[tuple[int, Iterable[str]]], top: int = 5
    ) -> Iterator[list[dict[str, Any]]]:
        """Yield the results for each chunk of `read_waiting_texts`.

        Raises:
            ValueError: a line is not UTF-8. The queries before it are answered first.
        """
        for _, texts in chunks:
            queries, mistake = read_until_mistake(text.strip() for text in texts)
            if queries:
                yield self.search(queries, top)
            if mistake is not None:
                raise mistake
