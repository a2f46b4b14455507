"""Records as batches: order from (seed, epoch, index) alone, shapes, and shares that are read apart."""

import subprocess
import sys
from itertools import islice

import keras
import numpy as np
import pytest

from keras_bert_flow.data.pretraining import ordered_batches, pretraining_dataset
from keras_bert_flow.data.pretraining_records import PretrainingRecords
from tests.oracles.objective_records import write_objective_records
from tests.oracles.tiny_records import MAX_PREDICTIONS, SEQUENCE_LENGTH, write_tiny_records
from tests.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.any_backend


def rows_of(batches):
    """Name each record by its bytes, in the order in which batches hold them."""
    return [row.tobytes() for x, _, _ in batches for row in x["token_ids"]]


def test_order_is_a_slice_at_any_step(folder):
    records = PretrainingRecords(folder)
    assert len(records) == 23
    whole = list(islice(pretraining_dataset(records, 5, seed=3), 30))
    for step in (1, 4, 5, 17):  # 5 batches of 5 go over the end of the first epoch
        rest = islice(pretraining_dataset(records, 5, seed=3, start_step=step), 30 - step)
        for expected, found in zip(whole[step:], rest, strict=True):
            keras.tree.map_structure(np.testing.assert_array_equal, expected, found)


def test_order_is_a_permutation_in_each_epoch(folder):
    records = PretrainingRecords(folder)
    everything = sorted(records[index]["input_ids"].astype("int32").tobytes() for index in range(23))
    assert len(set(everything)) == 23
    rows = rows_of(islice(pretraining_dataset(records, 1, seed=3), 69))
    epochs = [rows[:23], rows[23:46], rows[46:]]
    assert [sorted(epoch) for epoch in epochs] == [everything] * 3
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    assert rows_of(islice(pretraining_dataset(records, 1, seed=4), 23)) != epochs[0]


@pytest.mark.parametrize("masking", ["static", "dynamic"])
def test_shares_are_the_rows_of_the_batch(tmp_path, masking):
    """Three processes read what one would, each its own third of each batch, in the same order."""
    folder = write_objective_records(tmp_path / "records", "mlm_nsp")

    def take(share):
        return list(islice(pretraining_dataset(folder, 6, 3, 1, masking, share=share), 20))

    whole, *parts = (take(share) for share in ((0, 1), (0, 3), (1, 3), (2, 3)))
    for step, batch in enumerate(whole):
        shares = [batches[step] for batches in parts]
        joined = keras.tree.map_structure(lambda *rows: np.concatenate(rows), *shares)
        keras.tree.map_structure(np.testing.assert_array_equal, joined, batch)
    with pytest.raises(ValueError, match="must divide into equal shares. Received: batch_size=6, 4 shares"):
        pretraining_dataset(folder, 6, share=(0, 4))


def test_shares_are_read_apart(tmp_path, monkeypatch):
    """In one pass no record is read by two of three processes, though each reads ahead."""
    records = PretrainingRecords(write_tiny_records(tmp_path / "many", train=(300,)))
    reads, read = [], PretrainingRecords.__getitem__
    monkeypatch.setattr(PretrainingRecords, "__getitem__", lambda self, index: reads.append(index) or read(self, index))
    found = []
    for number in range(3):
        for _ in islice(pretraining_dataset(records, 6, share=(number, 3)), 20):
            pass
        found.append(set(reads))
        reads.clear()
    assert sum(map(len, found)) == len(set.union(*found))
    assert all(20 * 2 <= len(part) <= 100 for part in found)


def test_held_out_shares_have_as_many_batches_and_their_own_rows(folder):
    records = PretrainingRecords(folder, "held_out")
    assert len(records) == 7
    whole = list(ordered_batches(records, 4, 7))
    shares = [list(ordered_batches(records, 4, 7, (number, 2))) for number in (0, 1)]
    assert len(whole) == len(shares[0]) == len(shares[1]) == 2
    for expected, *parts in zip(whole, *shares, strict=True):
        joined = keras.tree.map_structure(lambda *rows: np.concatenate(rows), *parts)
        keras.tree.map_structure(np.testing.assert_array_equal, joined, expected)
    assert [len(list(ordered_batches(records, 4, 1, (number, 2)))) for number in (0, 1)] == [1, 1]


def test_order_does_not_depend_on_how_records_are_opened(folder):
    by_path, by_records = pretraining_dataset(folder, 5), pretraining_dataset(PretrainingRecords(folder), 5)
    assert rows_of(islice(by_path, 9)) == rows_of(islice(by_records, 9))


def test_batches_have_documented_shapes(folder):
    x, y, weights = next(iter(pretraining_dataset(folder, 5)))
    found = {name: (value.shape, value.dtype.name) for name, value in x.items()}
    assert found == {
        "token_ids": ((5, SEQUENCE_LENGTH), "int32"),
        "segment_ids": ((5, SEQUENCE_LENGTH), "int32"),
        "padding_mask": ((5, SEQUENCE_LENGTH), "int32"),
        "mask_positions": ((5, MAX_PREDICTIONS), "int32"),
    }
    assert {name: (value.shape, value.dtype.name) for name, value in y.items()} == {
        "mlm": ((5, MAX_PREDICTIONS), "int32"),
        "nsp": ((5,), "int32"),
    }
    assert {name: (value.shape, value.dtype.name) for name, value in weights.items()} == {
        "mlm": ((5, MAX_PREDICTIONS), "float32"),
        "nsp": ((5,), "float32"),
    }


def test_batches_keep_what_a_record_says(folder):
    records = PretrainingRecords(folder, "held_out")
    x, y, weights = next(ordered_batches(records, 7, 7))
    for row in range(7):
        record = records[row]
        np.testing.assert_array_equal(x["segment_ids"][row], record["segment_ids"])
        np.testing.assert_array_equal(x["padding_mask"][row], record["input_mask"])
        np.testing.assert_array_equal(x["mask_positions"][row], record["masked_lm_positions"])
        np.testing.assert_array_equal(y["mlm"][row], record["masked_lm_ids"])
        np.testing.assert_array_equal(weights["mlm"][row], record["masked_lm_weights"])
        assert y["nsp"][row] == record["next_sentence_labels"][0]
    assert 0 < weights["mlm"].sum() < weights["mlm"].size and set(y["nsp"]) == {0, 1}


def test_parts_are_apart(folder):
    assert len(PretrainingRecords(folder, "held_out")) == 7
    assert len(PretrainingRecords(folder, "nowhere")) == 0
    assert list(ordered_batches(PretrainingRecords(folder, "nowhere"), 4, 10)) == []


@pytest.mark.parametrize(("limit", "real"), [(100, 7), (6, 6), (4, 4), (1, 1)])
def test_ordered_batches_fill_the_last_with_weight_0(folder, limit, real):
    records = PretrainingRecords(folder, "held_out")
    batches = list(ordered_batches(records, 4, limit))
    assert {x["token_ids"].shape for x, _, _ in batches} == {(4, SEQUENCE_LENGTH)}
    assert rows_of(batches)[:real] == [records[row]["input_ids"].astype("int32").tobytes() for row in range(real)]
    counted = np.concatenate([weights["nsp"] for _, _, weights in batches])
    assert counted.tolist() == [1.0] * real + [0.0] * (len(counted) - real)
    predictions = np.concatenate([weights["mlm"] for _, _, weights in batches])
    assert not predictions[real:].any()
    expected = sum(records[row]["masked_lm_weights"].sum() for row in range(real))
    assert predictions.sum() == expected


def test_dataset_refuses_no_records(folder):
    with pytest.raises(ValueError, match="Received: none"):
        pretraining_dataset(PretrainingRecords(folder, "nowhere"), 4)


def test_records_are_read_without_protobuf(folder):
    """Its descriptors crash in threads. Grain imports it for statistics that are off: a stub takes that place."""
    code = f"""
import sys, types
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("google.protobuf"):
            raise ImportError(f"{{name}} is not to be imported")
sys.meta_path.insert(0, Refuse())
statistics = types.ModuleType("grain.proto.execution_summary_pb2")
statistics.ExecutionSummary = type("ExecutionSummary", (), {{"Node": type("Node", (), {{}})}})
sys.modules[statistics.__name__] = statistics
from keras_bert_flow.data.pretraining import pretraining_dataset
from keras_bert_flow.records.example import encode_scalars
print(len(next(iter(pretraining_dataset({str(folder)!r}, 5)))[0]["token_ids"]), len(encode_scalars(1, 2.0, {{"a": 1}})))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert (done.returncode, done.stdout.split()[0]) == (0, "5"), done.stderr
