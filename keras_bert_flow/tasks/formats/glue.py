"""GLUE tasks: the layout of their tables, and submission files for the GLUE server.

A GLUE folder is named as in `GLUE` and contains train.tsv, the dev files and the test files. The diagnostic table
(`AX`) is for a model of MNLI. Source: Wang et al. 2019, arXiv:1804.07461, and the files of gluebenchmark.com.
"""

import math
import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
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
from keras_bert_flow.tasks.registry import make_task

BINARY = ("0", "1")
ENTAILMENT = ("entailment", "not_entailment")
LOWEST, HIGHEST = 0.0, 5.0  # similarity of STS-B


@dataclass(frozen=True)
class GlueTest:
    """A test table: its file, and the number of predictions that the server expects."""

    file: str
    rows: int


@dataclass(frozen=True)
class GlueTask:
    """Layout of one GLUE task.

    Attributes:
        texts: columns of the text, and of the second text, in training and dev files.
        label: column of the label there.
        metrics: metrics that GLUE reports, with the names of our `score`; the first is the main one.
        tests: name in a submission → test table. A test table always has a header.
        labels: official names of the classes; empty for a score.
        header: whether training and dev files have a header.
        test_texts: columns in test files, if they differ.
    """

    texts: tuple[str, ...]
    label: str
    metrics: tuple[str, ...]
    tests: Mapping[str, GlueTest]
    labels: tuple[str, ...] = ()
    header: bool = True
    test_texts: tuple[str, ...] = ()
    dev_files: tuple[str, ...] = ("dev.tsv",)

    @property
    def kind(self) -> str:
        return "classification" if self.labels else "regression"


GLUE = {
    "CoLA": GlueTask(
        texts=("3",),
        label="1",
        metrics=("matthews",),
        tests={"CoLA.tsv": GlueTest("test.tsv", 1063)},
        labels=BINARY,
        header=False,
        test_texts=("sentence",),
    ),
    "SST-2": GlueTask(
        texts=("sentence",),
        label="label",
        metrics=("accuracy",),
        tests={"SST-2.tsv": GlueTest("test.tsv", 1821)},
        labels=BINARY,
    ),
    "MRPC": GlueTask(
        texts=("#1 String", "#2 String"),
        label="Quality",
        metrics=("f1_positive", "accuracy"),
        tests={"MRPC.tsv": GlueTest("test.tsv", 1725)},
        labels=BINARY,
    ),
    "STS-B": GlueTask(
        texts=("sentence1", "sentence2"),
        label="score",
        metrics=("spearman", "pearson"),
        tests={"STS-B.tsv": GlueTest("test.tsv", 1379)},
    ),
    "QQP": GlueTask(
        texts=("question1", "question2"),
        label="is_duplicate",
        metrics=("f1_positive", "accuracy"),
        tests={"QQP.tsv": GlueTest("test.tsv", 390_965)},
        labels=BINARY,
    ),
    "MNLI": GlueTask(
        texts=("sentence1", "sentence2"),
        label="gold_label",
        metrics=("accuracy",),
        tests={
            "MNLI-m.tsv": GlueTest("test_matched.tsv", 9796),
            "MNLI-mm.tsv": GlueTest("test_mismatched.tsv", 9847),
            "AX.tsv": GlueTest("diagnostic.tsv", 1104),
        },
        labels=("contradiction", "entailment", "neutral"),
        dev_files=("dev_matched.tsv", "dev_mismatched.tsv"),
    ),
    "QNLI": GlueTask(
        texts=("question", "sentence"),
        label="label",
        metrics=("accuracy",),
        tests={"QNLI.tsv": GlueTest("test.tsv", 5463)},
        labels=ENTAILMENT,
    ),
    "RTE": GlueTask(
        texts=("sentence1", "sentence2"),
        label="label",
        metrics=("accuracy",),
        tests={"RTE.tsv": GlueTest("test.tsv", 3000)},
        labels=ENTAILMENT,
    ),
    "WNLI": GlueTask(
        texts=("sentence1", "sentence2"),
        label="label",
        metrics=("accuracy",),
        tests={"WNLI.tsv": GlueTest("test.tsv", 146)},
        labels=BINARY,
    ),
}
SUBMISSION = {name: task for task in GLUE.values() for name in task.tests}


def glue_task(name: str, test: bool = False) -> Task:
    """Return the task of a GLUE folder, for its training and dev files or for its test files, which have no labels."""
    if name not in GLUE:
        raise ValueError(f"A GLUE task must be one of its nine. Received: {name!r}. Use one of: {', '.join(GLUE)}.")
    task = GLUE[name]
    texts = (test and task.test_texts) or task.texts
    columns = {"text": texts[0], "text_pair": texts[1] if len(texts) == 2 else None, "label": task.label}
    known = {"labels": task.labels} if task.labels else {"lowest": LOWEST, "highest": HIGHEST}
    return make_task(task.kind, **columns, **known, header=test or task.header, main_metric=task.metrics[0])


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
    task = SUBMISSION[name]
    lines = list((_read_labels if task.labels else _read_scores)(file, task.labels))
    if len(lines) != task.tests[name].rows:
        raise ValueError(
            f"{name} must have {task.tests[name].rows} predictions. Received: {len(lines)}, from {file}. "
            f"Predict the whole of {task.tests[name].file}."
        )
    return format_glue_table(lines)


def _read_labels(file: str | Path, labels: tuple[str, ...]) -> Iterator[str]:
    for place, value in _read_values(file, "label"):
        label = spell_label(value)
        if label not in labels:
            raise ValueError(
                f"{place}: a label must be one of {', '.join(labels)}. "
                f"Received: {abridge([repr(label)])}. Predict with a model of this task."
            )
        yield label


def _read_scores(file: str | Path, _: tuple[str, ...]) -> Iterator[float]:
    for place, score in _read_values(file, "score"):
        if isinstance(score, bool) or not isinstance(score, int | float) or not abs(score) < math.inf:
            raise ValueError(
                f"{place}: a score must be a finite number. Received: {abridge([repr(score)])}. "
                "Predict with a model of this task."
            )
        yield min(max(score, LOWEST), HIGHEST)


def _read_values(file: str | Path, field: str) -> Iterator[tuple[str, Any]]:
    """Yield the location of each prediction and its value, from a field of JSON lines or the column of a GLUE table."""
    if require_ending(file, (".jsonl", ".tsv")) == ".jsonl":
        for number, fields in read_objects(file):
            place = f"{file}, row {number}"
            yield place, *pick_fields(place, fields, [field])
        return
    for place, value in walk_glue_table(file):
        yield place, _parse_number(value) if field == "score" else value


def _parse_number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


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
