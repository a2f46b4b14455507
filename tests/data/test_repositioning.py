"""Going on at a step costs the same wherever it is: what is read, and what is called."""

import gc
import sys
import threading
from collections import Counter

import grain
import numpy as np
import pytest

from keras_bert_flow.data import pretraining, tasks
from keras_bert_flow.data.pretraining import pretraining_dataset
from keras_bert_flow.data.pretraining_records import PretrainingRecords
from keras_bert_flow.data.tasks import task_dataset
from keras_bert_flow.records.tfrecord import TFRecordFile
from keras_bert_flow.tasks.core.task import Features
from tests.oracles.objective_records import write_objective_records

pytestmark = pytest.mark.any_backend

STEPS = (5, 1_000, 1_000_000, 1_000_000_000)
BATCH = 6
AT_ONCE = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)  # nothing is read that is not asked for


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    return PretrainingRecords(write_objective_records(tmp_path_factory.mktemp("repositioning") / "records"))


@pytest.fixture
def reads(monkeypatch):
    """Count the records that are read off a file in this thread: data sets of other tests may still read ahead."""
    reads, here = [], threading.get_ident()

    def read(file, position, get=TFRecordFile.__getitem__):
        if threading.get_ident() == here:
            reads.append(position)
        return get(file, position)

    monkeypatch.setattr(TFRecordFile, "__getitem__", read)
    monkeypatch.setattr(pretraining, "READING", AT_ONCE)
    monkeypatch.setattr(tasks, "READING", AT_ONCE)
    return reads


def count_calls(act) -> Counter:
    """Count the calls of each Python and C function in this thread."""
    calls = Counter()

    def note(frame, event, argument):
        if event == "call":
            calls[frame.f_code.co_qualname] += 1
        elif event == "c_call":
            calls[argument.__qualname__] += 1

    gc.collect()
    gc.disable()  # what other tests left would call its finalizers in here
    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(None)
        gc.enable()
    return calls


@pytest.mark.first_form
@pytest.mark.parametrize(("masking", "parts"), [("static", 1), ("dynamic", 3)])
def test_going_on_reads_one_batch_at_any_step(records, reads, masking, parts):
    counts = {}
    for step in (0, *STEPS):  # the first time, functions are imported and caches filled
        reads.clear()
        calls = count_calls(lambda step=step: next(iter(pretraining_dataset(records, BATCH, 1, step, masking, parts))))
        counts[step] = (len(reads), calls)
    assert {step: count for step, (count, _) in counts.items()} == dict.fromkeys((0, *STEPS), BATCH)
    totals = [counts[step][1].total() for step in STEPS]
    # What a batch holds makes a difference of a few calls: a draw that is made again, another file.
    assert max(totals) - min(totals) < 0.05 * min(totals)
    assert min(totals) > 100


def test_going_on_takes_the_batch_that_an_uninterrupted_run_would(records, reads):
    whole = iter(pretraining_dataset(records, BATCH, 1, 0))
    for step, (x, _, _) in zip(range(60), whole, strict=False):
        if step % 20 == 19:
            (again, _, _) = next(iter(pretraining_dataset(records, BATCH, 1, step)))
            np.testing.assert_array_equal(again["token_ids"], x["token_ids"])


def test_going_on_with_a_task_makes_one_batch_at_any_step(reads, monkeypatch):
    made, make_inputs = [], tasks.make_inputs

    def count(features, rows, width):
        made.append(len(rows))
        return make_inputs(features, rows, width)

    monkeypatch.setattr(tasks, "make_inputs", count)
    sequences = [np.zeros(8, np.int32) for _ in range(77)]
    features = Features(sequences, np.full(77, 8), np.arange(77), {"logits": np.zeros(77, np.int32)})
    totals = []
    later = STEPS[1:]  # past the first pass, which is planned as the batches are made
    for step in (0, *later):
        dataset = task_dataset(features, BATCH, 1, step)
        totals.append(count_calls(lambda dataset=dataset: next(iter(dataset))).total())
    assert made == [BATCH] * (1 + len(later))
    assert max(totals[1:]) - min(totals[1:]) < 0.05 * min(totals[1:])
