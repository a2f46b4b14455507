"""Official formats of predictions: submissions for the GLUE server, and writing GLUE tables, SQuAD JSON, CoNLL columns.

The diagnostic table (`AX`) is for a model of MNLI. Source: Wang et al. 2019, arXiv:1804.07461, and the files of
gluebenchmark.com.
"""

import math
import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keras_bert_flow.files.paths import check_local
from keras_bert_flow.tasks.core.task import Prediction, Task
from keras_bert_flow.tasks.formats.rows import (
    abridge,
    pick_fields,
    read_objects,
    require_ending,
    spell_label,
)
from keras_bert_flow.tasks.formats.tables import format_glue_table, walk_glue_table

BINARY = ("0", "1")
ENTAILMENT = ("entailment", "not_entailment")
INFERENCE = ("contradiction", "entailment", "neutral")
LOWEST, HIGHEST = 0.0, 5.0  # similarity of STS-B


@dataclass(frozen=True)
class GlueTest:
    """A test table of GLUE.

    Attributes:
        file: its name in the task's folder.
        rows: number of predictions that the server expects.
        labels: official names of the classes; empty for a score.
    """

    file: str
    rows: int
    labels: tuple[str, ...] = ()


# name in a submission → test table
SUBMISSION = {
    "CoLA.tsv": GlueTest("test.tsv", 1063, BINARY),
    "SST-2.tsv": GlueTest("test.tsv", 1821, BINARY),
    "MRPC.tsv": GlueTest("test.tsv", 1725, BINARY),
    "STS-B.tsv": GlueTest("test.tsv", 1379),
    "QQP.tsv": GlueTest("test.tsv", 390_965, BINARY),
    "MNLI-m.tsv": GlueTest("test_matched.tsv", 9796, INFERENCE),
    "MNLI-mm.tsv": GlueTest("test_mismatched.tsv", 9847, INFERENCE),
    "AX.tsv": GlueTest("diagnostic.tsv", 1104, INFERENCE),
    "QNLI.tsv": GlueTest("test.tsv", 5463, ENTAILMENT),
    "RTE.tsv": GlueTest("test.tsv", 3000, ENTAILMENT),
    "WNLI.tsv": GlueTest("test.tsv", 146, BINARY),
}


def write_glue_submission(path: str | Path, predictions: Mapping[str, str | Path]) -> tuple[str, ...]:
    """Write predictions on the test tables as a submission .zip for the GLUE server.

    Args:
        path: path of the .zip; equal predictions give equal bytes.
        predictions: name in the submission, such as `CoLA.tsv` → .jsonl of predictions in the order of the test table,
            or .tsv as written by `write_glue_table`.
    Returns:
        Names of the files missing from the eleven of a complete submission; the server accepts only complete ones.
    Raises:
        FileNotFoundError: a file of predictions does not exist.
        ValueError: a name is not one of the eleven, or a file does not have one valid prediction per row of its table.
    """
    path = check_local(path)
    unknown = [name for name in predictions if name not in SUBMISSION]
    if unknown or not predictions:
        raise ValueError(
            f"A submission must be of files that GLUE names. Received: {abridge(unknown) or 'none'}. "
            f"Use: {', '.join(SUBMISSION)}."
        )
    contents = {name: _format_predictions(name, file) for name, file in sorted(predictions.items())}
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    with zipfile.ZipFile(partial, "w") as archive:
        for name, content in contents.items():
            member = zipfile.ZipInfo(name)  # without a date
            member.compress_type, member.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            archive.writestr(member, content)
    os.replace(partial, path)
    return tuple(name for name in SUBMISSION if name not in predictions)


def _format_predictions(name: str, file: str | Path) -> str:
    table = SUBMISSION[name]
    lines: list[str | float] = []
    for place, value in _read_values(file, "label" if table.labels else "score"):
        if not table.labels:
            if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < math.inf:
                raise ValueError(
                    f"{place}: a score must be a finite number. Received: {abridge([repr(value)])}. "
                    "Predict with a model of this task."
                )
            lines.append(min(max(value, LOWEST), HIGHEST))
            continue
        label = spell_label(value)
        if label not in table.labels:
            raise ValueError(
                f"{place}: a label must be one of {', '.join(table.labels)}. "
                f"Received: {abridge([repr(label)])}. Predict with a model of this task."
            )
        lines.append(label)
    if len(lines) != table.rows:
        raise ValueError(
            f"{name} must have {table.rows} predictions. Received: {len(lines)}, from {file}. "
            f"Predict the whole of {table.file}."
        )
    return format_glue_table(lines)


def _read_values(file: str | Path, field: str) -> Iterator[tuple[str, Any]]:
    """Yield the location of each prediction and its value, from a field of JSON lines or the column of a GLUE table."""
    if require_ending(file, (".jsonl", ".tsv")) == ".jsonl":
        for number, fields in read_objects(file):
            place = f"{file}, row {number}"
            yield place, *pick_fields(place, fields, [field])
        return
    for place, text in walk_glue_table(file):
        value: float | str = text
        if field == "score":
            with suppress(ValueError):  # refused as no number
                value = float(text)
        yield place, value


# Write predictions in official formats: GLUE tables, SQuAD JSON, CoNLL columns.


def check_format(name: str, task: Task) -> None:
    """Raise ValueError unless predictions of a task have a format of this name."""
    if name != task.official_format:
        known = ["jsonl", *([task.official_format] if task.official_format else [])]
        raise ValueError(
            f"A format must be one that predictions of {task.kind} have. Received: {name!r}. "
            f"Use one of: {', '.join(known)}."
        )


def write_official(path: str | Path, task: Task, examples: Sequence[Any], predictions: Sequence[Prediction]) -> None:
    """Write predictions in the official format of a task, atomically.

    Raises:
        ValueError: the format cannot express a prediction; the message names it.
    """
    path = check_local(path)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        task.write_official(unfinished, examples, predictions)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
