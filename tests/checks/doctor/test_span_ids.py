"""`kbf doctor` on the numbers of spans in records of an objective that has spans."""

import numpy as np
import pytest

from keras_bert_flow.checks.record_counts import RecordCounts, make_layout
from keras_bert_flow.records.example import decode_record, encode_examples
from keras_bert_flow.records.tfrecord import TFRecordFile
from keras_bert_flow.results.manifest import read_manifest
from tests.oracles.objective_records import write_objective_records

pytestmark = pytest.mark.any_backend


@pytest.mark.parametrize(
    ("change", "faults"),
    [
        (lambda ids: ids, {}),
        (lambda ids: ids + 1, {"predictions": 1}),
        (lambda ids: np.ones_like(ids), {"predictions": 1}),
        (lambda ids: ids[:-1], {"shapes": 1}),
        (None, {"shapes": 1}),
    ],
)
def test_numbers_of_spans_are_the_runs_of_masks(tmp_path, change, faults):
    folder = write_objective_records(tmp_path / "records", "mlm_sbo")
    pieces = (folder / "vocab.txt").read_text(encoding="utf-8").split()
    records = TFRecordFile(folder / "train-00000-of-00001.tfrecord")
    features = next(
        found
        for found in map(decode_record, (records[n] for n in range(len(records))))
        if not found["input_mask"].all()
    )
    spans = {"masked_lm_span_ids": change(features["masked_lm_span_ids"])} if change else {}
    features = {name: values for name, values in features.items() if name != "masked_lm_span_ids"} | spans
    counts = RecordCounts(make_layout(read_manifest(folder).config, pieces))
    counts.add(encode_examples({name: values[None] for name, values in features.items()})[0], "here")
    counts.flush()
    assert dict(counts.faults) == faults
