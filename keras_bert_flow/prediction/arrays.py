"""Write text features as NumPy arrays (.npz)."""

import shutil
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from keras_bert_flow.prediction.whole_file import writing_whole
from keras_bert_flow.tasks.core.task import Prediction

ARRAYS = ".npz"


def check_arrays(path: Path, asked_as: str | None) -> None:
    """Raise ValueError for an .npz path unless features are requested."""
    if path.suffix == ARRAYS and asked_as != "features":
        raise _not_features()


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
                raise _not_features()
            raw.write(np.ascontiguousarray(prediction["features"], dtype="<f4").tobytes())
            size = prediction["features"].shape[-1]
            lengths.append(len(prediction["tokens"]))
            tokens += prediction["tokens"]
    if not lengths:
        raise ValueError("There must be a text to make features of. Received: none. Give one a line.")
    return lengths, tokens, size


def _not_features() -> ValueError:
    return ValueError(
        f"A file that ends in {ARRAYS} must be of features. Received: another kind of predictions. "
        "Name one that ends in .jsonl, or ask --as features."
    )
