"""Import pre-training records made by other tools, such as google-research/bert or TensorFlow's Model Garden.

Their features are named as ours (`records.example`), or as by Model Garden's `--use_v2_feature_names`. Each file
becomes a file of a folder like those that `kbf records` publishes, and its records are checked against their
description.
"""

import glob
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_bert_flow.checks.record_counts import RecordCounts, judge_records, make_layout
from keras_bert_flow.config.text import RecordsConfig
from keras_bert_flow.files.inputs import hold
from keras_bert_flow.records.example import FEATURE_KINDS, decode_example, decode_record, encode_examples
from keras_bert_flow.records.tfrecord import TFRecordFile, name_record_file, write_tfrecords
from keras_bert_flow.results.manifest import FileSummary
from keras_bert_flow.results.publishing import Contents, publish
from keras_bert_flow.results.stages.data import IMPORTED, imported_key
from keras_bert_flow.text.objectives.objective import check_joining
from keras_bert_flow.text.tokenizers.files import (
    copy_tokenizer,
    describe_rules,
    list_tokenizer_files,
    read_tokenizer_file,
)
from keras_bert_flow.text.tokenizers.tokenizer import Tokenizer

TRAIN, HELD_OUT = "train", "held_out"
SAMPLE = 100_000  # records that are examined, evenly spread
_LABEL = "next_sentence_labels"
_OTHER_NAMES = {"input_word_ids": "input_ids", "input_type_ids": "segment_ids"}  # Model Garden's version 2
_GZIP = b"\x1f\x8b"
_SAY = "Say how they were made: --objective, --mask-unit, --set records.masked_fraction=0.2; or take others."

_logger = logging.getLogger(__name__)


def import_records(
    files: Sequence[str],
    records: RecordsConfig,
    vocabulary_file: str | Path,
    cased: bool,
    output: str | Path,
    held_out: Sequence[str] = (),
) -> Path:
    """Publish a folder of records made by other tools; skipped if it exists.

    Args:
        files: TFRecord files or globs to train on, without compression.
        records: of which `objective`, `masked_fraction` and `mask_unit` describe how they were made.
        vocabulary_file: the vocab.txt, or tokenizer.json, that they were made with.
        cased: the vocabulary keeps case.
        output: the folder.
        held_out: files or globs to evaluate on.
    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file is damaged, or its records do not match their description; the message says what is wrong.
    """
    held = hold(*_find(files), *_find(held_out), *list_tokenizer_files(vocabulary_file))
    parts, tokenizer, config = check_import(files, records, vocabulary_file, cased, held_out)
    key, inputs = imported_key(config, parts, vocabulary_file)

    def build(work: Path) -> Contents:
        opened = {part: [TFRecordFile(path) for path in paths] for part, paths in parts.items()}
        special_pieces = [tokenizer.pieces[number] for number in tokenizer.special_ids]
        counts = RecordCounts(make_layout(config, tokenizer.pieces, special_pieces))
        step = -(-sum(len(file) for found in opened.values() for file in found) // SAMPLE)
        summaries: list[FileSummary] = []
        for part, found in opened.items():
            for number, file in enumerate(found):
                name = name_record_file(part, number, len(found))
                summaries += write_tfrecords(work / name, _convert(file, counts, step))
        if not opened[HELD_OUT]:
            summaries += write_tfrecords(work / name_record_file(HELD_OUT, 0, 1), ())
        counts.flush()
        _judge(counts)
        copy_tokenizer(vocabulary_file, cased, work)
        return Contents(config, inputs, {}, summaries)

    if not parts[HELD_OUT]:
        _logger.warning("No records are held out, so no run on these can be judged. Name some with --held-out.")
    return publish(output, IMPORTED.name, key, build, inputs=held, revision=IMPORTED.revision)


def check_import(
    files: Sequence[str],
    records: RecordsConfig,
    vocabulary_file: str | Path,
    cased: bool,
    held_out: Sequence[str] = (),
) -> tuple[dict[str, list[str]], Tokenizer, dict[str, Any]]:
    """Read the first record of each file; return files by part, the tokenizer, and the manifest's configuration.

    Raises:
        FileNotFoundError, ValueError: as for `import_records`.
    """
    tokenizer = read_tokenizer_file(vocabulary_file, cased)
    check_joining(records.objective, tokenizer)
    parts = {TRAIN: _find(files), HELD_OUT: _find(held_out)}
    if twice := {*parts[TRAIN]} & {*parts[HELD_OUT]}:
        raise ValueError(f"Held-out records must be files of their own. Received: {min(twice)} for both. Name it once.")
    shapes: dict[tuple[int, int], str] = {}
    for path in (*parts[TRAIN], *parts[HELD_OUT]):
        features = _read_first(path)
        shape = (len(features["input_ids"]), len(features["masked_lm_ids"]))
        shapes.setdefault(shape, path)
        if len(shapes) > 1:
            raise ValueError(
                "Records must be of one length and one number of predictions. Received: "
                f"{' and '.join(f'{length} and {masks} in {path}' for (length, masks), path in shapes.items())}. "
                "Import each kind into a folder of its own."
            )
    ((length, masks),) = shapes
    config = {
        "objective": records.objective,
        "sequence_length": length,
        "max_predictions": masks,
        "masked_fraction": records.masked_fraction,
        "mask_unit": records.mask_unit,
        "vocabulary_size": tokenizer.vocabulary_size,
        "cased": tokenizer.cased,
    } | describe_rules(tokenizer)
    config |= {"packing": True} if records.packing else {}
    return parts, tokenizer, config


def convert_record(record: bytes) -> bytes:
    """Rename the features of a record as in `records.example`; one that has these names is unchanged.

    A record without a pair label gets 0, which objectives of one text never read.

    Raises:
        ValueError: a feature is missing, empty or of another type.
    """
    features = decode_example(record)
    if all(name in features for name in FEATURE_KINDS):
        return record
    renamed = {_OTHER_NAMES.get(name, name): values for name, values in features.items()} | {
        _LABEL: features.get(_LABEL, np.zeros(1, np.int64))
    }
    for name, kind in FEATURE_KINDS.items():
        if name not in renamed or renamed[name].dtype.kind != kind or not renamed[name].size:
            raise ValueError(f"the features {', '.join(sorted(features))}, of which none is a usable `{name}`")
    return encode_examples({name: renamed[name][None] for name in FEATURE_KINDS})[0]


def _convert(file: TFRecordFile, counts: RecordCounts, step: int) -> Iterator[bytes]:
    for position in range(len(file)):
        try:
            record = convert_record(file[position])
        except ValueError as error:
            raise _unusable(f"record {position} of {file.path}", error) from None
        if not position % step:
            counts.add(record, f"record {position} of {file.path}")
        yield record


def _judge(counts: RecordCounts) -> None:
    """Raise ValueError for the first error that the doctor finds, and log its warnings."""
    for finding in judge_records(counts, {}, is_whole=False):
        if finding.verdict == "error":
            raise ValueError(
                f"Imported records must pass the doctor. Received: {finding.what}: {finding.value}. {_SAY}"
            )
        if finding.verdict == "warning":
            _logger.warning("%s: %s. %s", finding.what, finding.value, finding.remedy)


def _find(patterns: Sequence[str]) -> list[str]:
    """Return the files that the patterns match, each once."""
    found = []
    for pattern in patterns:
        paths = [path for path in glob.glob(pattern) if Path(path).is_file()]
        if not paths:
            raise FileNotFoundError(f"Records must be files. Received: {pattern}, which none is. Check the path.")
        found += paths
    return sorted({*found})


def _read_first(path: str) -> Mapping[str, np.ndarray]:
    with open(path, "rb") as file:
        if file.read(len(_GZIP)) == _GZIP:
            raise ValueError(f"Records must not be compressed. Received: {path}, in gzip. Decompress it.")
    records = TFRecordFile(path)
    if not len(records):
        raise ValueError(f"A file of records must hold at least one. Received: {path}, which is empty. Leave it out.")
    try:
        return decode_record(convert_record(records[0]))
    except ValueError as error:
        raise _unusable(path, error) from None


def _unusable(place: str, error: ValueError) -> ValueError:
    return ValueError(
        f"Records must have the features of google-research/bert. Received: {place}: {str(error).rstrip('.')}. "
        "Make them with its create_pretraining_data.py, or with `kbf records`."
    )
