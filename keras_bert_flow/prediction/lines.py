"""Read items from lines of text, and write predictions as JSON lines or arrays."""

import json
import os
import select
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TextIO

import numpy as np

from keras_bert_flow.console.terminal import show_json
from keras_bert_flow.files.documents import parse_json
from keras_bert_flow.files.outputs import check_place
from keras_bert_flow.files.paths import check_local
from keras_bert_flow.results.artifacts import removed_on_leaving, temporary_path
from keras_bert_flow.results.publishing import verify
from keras_bert_flow.tasks.core.task import Prediction
from keras_bert_flow.tasks.formats.rows import MAX_LINE_BYTES
from keras_bert_flow.text.corpus.inputs import PARQUET
from keras_bert_flow.text.corpus.lines import suggest_conversion

# Write a file atomically.


@contextmanager
def writing_whole(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path, whose file replaces `path` if the block ends without an error."""
    unfinished = temporary_path(check_local(path))
    try:
        with removed_on_leaving(unfinished):
            yield unfinished
            with unfinished.open("rb") as file:
                os.fsync(file.fileno())
            unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


PlacedItem = tuple[str, Any]  # location, for messages, and item
READ_BYTES = 1 << 16  # capacity of a pipe on Linux


def check_lines_file(path: str | Path) -> None:
    """Raise FileNotFoundError unless a path is a file."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"The texts must be a file. Received: {path}, which is not one. Check the path.")


def refuse_parquet(path: str | Path) -> None:
    """Raise ValueError for a table where lines of text are read."""
    if str(path).endswith(PARQUET):
        raise ValueError(
            f"The texts must be lines of a file. Received: {path}, a table. Write its column of texts to a .txt, "
            "a text a line."
        )


def check_batch_positions(batch_positions: int) -> None:
    """Raise ValueError unless a batch has room for a token."""
    if batch_positions < 1:
        raise ValueError(f"`batch_positions` must be at least 1. Received: batch_positions={batch_positions}.")


def list_items(items: Any) -> Iterable[Any]:
    """Return items as an iterable; a single text, or a single object with named parts, is one item.

    Raises:
        TypeError: the items are bytes, a number or None.
    """
    if isinstance(items, str | Mapping):
        return [items]
    if isinstance(items, bytes | bytearray) or not hasattr(items, "__iter__") or getattr(items, "shape", None) == ():
        raise TypeError(
            f"Items must be a text, or a list of items. Received: {type(items).__name__}. "
            'Give for example ["a fine film"].'
        )
    return items


def read_items(lines: Iterable[str], source: str = "Line", first: int = 1) -> Iterator[PlacedItem]:
    """Read one item per line: a text; two texts separated by a tab; or JSON, if a line begins with { or [.

    A blank line is an empty text, so that every line gets a prediction.

    Args:
        source: text before the number of a line in a message.
        first: number of the first line.
    Raises:
        ValueError: a line begins like JSON but is not valid.
    """
    for number, line in enumerate(lines, first):
        place = f"{source} {number}"
        line = line.strip("\r\n ")
        if not line.strip():
            yield place, ""
        elif line[0] in "{[":
            try:
                yield place, parse_json(line)
            except ValueError as error:
                raise ValueError(
                    f"{place}: a line that begins with {line[0]} must be JSON. Received: {error}. "
                    'Correct it, or give the text as {"text": ...}.'
                ) from None
        else:
            yield place, line.split("\t") if "\t" in line else line


def decode_line(line: bytes, place: str) -> str:
    """Decode a line as UTF-8, without the byte order mark that the first one may have.

    Raises:
        ValueError: it is not UTF-8; the message begins with `place`.
    """
    try:
        return line.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{place}: a text must be UTF-8. Received: byte 0x{line[error.start]:02x}. {suggest_conversion(line)}"
        ) from None


def read_waiting_texts(descriptor: int, at_once: int) -> Iterator[tuple[int, Iterator[str]]]:
    """Yield the lines of a pipe or file in chunks of those that are already available, at most `at_once`.

    Only the first line of a chunk is waited for, so that a program that writes one line and waits for its answer gets
    it.

    Yields:
        The number of the first line, from 1, and the lines, each decoded as UTF-8 when it is consumed.
    """
    first = 1
    for lines in _read_waiting_lines(descriptor, at_once):
        yield first, (decode_line(line, f"Line {number}") for number, line in enumerate(lines, first))
        first += len(lines)


def read_waiting_items(descriptor: int, at_once: int) -> Iterator[Iterator[PlacedItem]]:
    """Yield the items of a pipe or file in chunks; see `read_waiting_texts`."""
    for first, texts in read_waiting_texts(descriptor, at_once):
        yield read_items(texts, first=first)


def read_until_mistake(items: Iterable[Any]) -> tuple[list[Any], ValueError | None]:
    """Return the items before the first error, and the error: they are predicted before it is raised."""
    found = []
    try:
        for item in items:
            found.append(item)
    except ValueError as error:
        return found, error
    return found, None


def write_lines(chunks: Iterable[Sequence[Prediction]], path: str | Path | None) -> None:
    """Write predictions as they arrive: atomically to a file, or to standard output."""
    with ExitStack() as stack:
        file: TextIO = sys.stdout
        if path is not None:
            file = stack.enter_context(stack.enter_context(writing_whole(path)).open("w", encoding="utf-8"))
        for predictions in chunks:
            for prediction in predictions:
                show_json(json.dumps(prediction, ensure_ascii=False, default=np.ndarray.tolist), file)
            file.flush()  # the reader of a pipe may be waiting for it


def _read_waiting_lines(descriptor: int, at_once: int) -> Iterator[list[bytes]]:
    lines: list[bytes] = []
    rest, is_open = bytearray(), True
    while is_open or lines:
        # With lines pending, only what is already available is read; reading a file never waits.
        while is_open and len(lines) < at_once and (not lines or select.select([descriptor], [], [], 0)[0]):
            read = os.read(descriptor, READ_BYTES)
            is_open = bool(read)
            first, *others = read.split(b"\n")
            rest += first
            if len(rest) > MAX_LINE_BYTES:
                raise ValueError(
                    f"A line must have at most {MAX_LINE_BYTES >> 20} MiB. Received: a longer one on standard input. "
                    "Cut the text into lines."
                )
            if others:
                lines += [bytes(rest), *others[:-1]]
                rest = bytearray(others[-1])
        if not is_open and rest:
            lines, rest = [*lines, bytes(rest)], bytearray()
        if lines:
            yield lines[:at_once]
            lines = lines[at_once:]


# Write text features as NumPy arrays (.npz).

ARRAYS = ".npz"
NOT_FEATURES = (
    f"A file that ends in {ARRAYS} must be of features. Received: another kind of predictions. "
    "Name one that ends in .jsonl, or ask --as features."
)


def check_arrays(path: Path, asked_as: str | None) -> None:
    """Raise ValueError for an .npz path unless features are requested."""
    if path.suffix == ARRAYS and asked_as != "features":
        raise ValueError(NOT_FEATURES)


def write_arrays(chunks: Iterable[Sequence[Prediction]], path: str | Path) -> None:
    """Write features to an .npz atomically as they arrive, without holding all of them in memory.

    The arrays: `features`, float32, (texts, size), or those of all tokens concatenated, (tokens, size); `tokens`, the
    pieces of all texts; `lengths`, int64, (texts,), the number of pieces of each text. `np.split(features,
    lengths.cumsum()[:-1])` gives those of each.

    Raises:
        ValueError: the predictions are not features, or there are none.
    """
    with writing_whole(path) as unfinished, tempfile.TemporaryFile(dir=Path(path).absolute().parent) as raw:
        lengths, tokens, size = _write_raw(chunks, raw)
        rows = raw.tell() // (4 * size)
        raw.seek(0)
        with zipfile.ZipFile(unfinished, "w", allowZip64=True) as archive:
            with archive.open("features.npy", "w", force_zip64=True) as member:
                header = {"descr": "<f4", "fortran_order": False, "shape": (rows, size)}
                np.lib.format.write_array_header_1_0(member, header)
                shutil.copyfileobj(raw, member)
            for name, values in (("tokens", np.array(tokens)), ("lengths", np.array(lengths, dtype=np.int64))):
                with archive.open(f"{name}.npy", "w") as member:
                    np.lib.format.write_array(member, values, allow_pickle=False)


def _write_raw(chunks: Iterable[Sequence[Prediction]], raw: BinaryIO) -> tuple[list[int], list[str], int]:
    """Write the features as bytes; return the number of tokens of each text, the tokens, and the size of a vector."""
    lengths, tokens, size = [], [], 0
    for predictions in chunks:
        for prediction in predictions:
            if not isinstance(prediction, dict) or "features" not in prediction:
                raise ValueError(NOT_FEATURES)
            raw.write(np.ascontiguousarray(prediction["features"], dtype="<f4").tobytes())
            size = prediction["features"].shape[-1]
            lengths.append(len(prediction["tokens"]))
            tokens += prediction["tokens"]
    if not lengths:
        raise ValueError("There must be a text to make features of. Received: none. Give one a line.")
    return lengths, tokens, size


# Check the index folders of `kbf search`.

INDEX = "index.json"
REMEDY = "Choose another folder, or remove it to have it made anew."


def check_index(folder: str | Path) -> None:
    """Check that a folder is an index and is not damaged, or that one can be made there.

    Raises:
        OSError: it does not exist, and cannot be made.
        ValueError: it is not an index, or is damaged.
    """
    folder = Path(folder)
    if not folder.exists():
        check_place(folder)
    elif not (folder / INDEX).is_file():
        raise no_index(folder)
    else:
        try:
            verify(folder)
        except (FileNotFoundError, ValueError) as error:
            raise no_index(folder, str(error).partition("Received: ")[2].partition(". ")[0]) from None


def no_index(folder: Path, fault: str = "") -> ValueError:
    """Return the error for a folder that is not an index, which may be anything of value, or is a damaged one."""
    is_damaged = (folder / INDEX).is_file()
    received = f"{folder}, which is damaged{fault and f': {fault}'}" if is_damaged else f"{folder}, which is not one"
    remedy = REMEDY if is_damaged else "Choose another folder."
    return ValueError(f"An index must be a folder that `kbf search` made. Received: {received}. {remedy}")
