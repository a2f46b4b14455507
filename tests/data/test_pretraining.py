"""Records as batches: order from (seed, epoch, index) alone, shapes, and every damage named."""

import dataclasses
import re
import shutil
import subprocess
import sys
from itertools import islice
from pathlib import Path

import keras
import numpy as np
import pytest

from keras_bert_flow.data.pretraining import ordered_batches, pretraining_dataset
from keras_bert_flow.data.pretraining_records import PretrainingRecords
from keras_bert_flow.records.manifest import read_manifest, write_manifest
from keras_bert_flow.records.schema import decode_record
from keras_bert_flow.records.tfrecord import TFRecordFile, write_tfrecords
from tests.oracles.examples import encode_example
from tests.oracles.objective_records import write_objective_records
from tests.oracles.tiny_records import write_tiny_records
from tests.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.any_backend

LENGTH, PREDICTIONS = 16, 3


@pytest.fixture
def folder(tmp_path):
    return write_tiny_records(tmp_path / "records")


def rows_of(batches):
    """Name each record by its bytes, in the order in which batches hold them."""
    return [row.tobytes() for x, _, _ in batches for row in x["token_ids"]]


def flip_byte(path, place):
    content = bytearray(path.read_bytes())
    content[int(len(content) * place)] ^= 1
    path.write_bytes(content)


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
        "token_ids": ((5, LENGTH), "int32"),
        "segment_ids": ((5, LENGTH), "int32"),
        "padding_mask": ((5, LENGTH), "int32"),
        "mask_positions": ((5, PREDICTIONS), "int32"),
    }
    assert {name: (value.shape, value.dtype.name) for name, value in y.items()} == {
        "mlm": ((5, PREDICTIONS), "int32"),
        "nsp": ((5,), "int32"),
    }
    assert {name: (value.shape, value.dtype.name) for name, value in weights.items()} == {
        "mlm": ((5, PREDICTIONS), "float32"),
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
    assert {x["token_ids"].shape for x, _, _ in batches} == {(4, LENGTH)}
    assert rows_of(batches)[:real] == [records[row]["input_ids"].astype("int32").tobytes() for row in range(real)]
    counted = np.concatenate([weights["nsp"] for _, _, weights in batches])
    assert counted.tolist() == [1.0] * real + [0.0] * (len(counted) - real)
    predictions = np.concatenate([weights["mlm"] for _, _, weights in batches])
    assert not predictions[real:].any()
    expected = sum(records[row]["masked_lm_weights"].sum() for row in range(real))
    assert predictions.sum() == expected


def test_records_refuse_changed_file(folder):
    flip_byte(folder / "train-00001-of-00002.tfrecord", 0.5)
    with pytest.raises(ValueError, match="train-00001-of-00002.tfrecord, changed or damaged"):
        PretrainingRecords(folder)


def test_records_refuse_missing_file(folder):
    (folder / "train-00001-of-00002.tfrecord").unlink()
    with pytest.raises(FileNotFoundError, match="train-00001-of-00002.tfrecord, missing"):
        PretrainingRecords(folder)


def test_records_refuse_files_that_changed_places(folder):
    first, second = (folder / f"train-0000{number}-of-00002.tfrecord" for number in range(2))
    for suffix in ("", ".index"):  # a file with its index: each is whole, and opens
        one, other = Path(f"{first}{suffix}"), Path(f"{second}{suffix}")
        content = one.read_bytes()
        one.write_bytes(other.read_bytes())
        other.write_bytes(content)
    assert len(TFRecordFile(first)) == 10
    with pytest.raises(ValueError, match="train-00000-of-00002.tfrecord, changed or damaged"):
        PretrainingRecords(folder)


def test_records_refuse_files_of_one_size_that_changed_places(tmp_path):
    records = write_tiny_records(tmp_path / "records", train=(4, 4))
    (tmp_path / "even").mkdir()
    examples = [TFRecordFile(path)[0] for path in sorted(records.glob("train-*.tfrecord"))]
    longest = max(map(len, examples))
    files = [
        write_tfrecords(tmp_path / "even" / f"train-{n}.tfrecord", [example.ljust(longest)])
        for n, example in enumerate(examples)
    ]
    shutil.copy(records / "vocab.txt", tmp_path / "even")
    write_manifest(tmp_path / "even", "records", "k", read_manifest(records).config, {}, {}, sum(files, []))
    one, other = sorted((tmp_path / "even").glob("*.tfrecord"))
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)
    with pytest.raises(ValueError, match="train-0.tfrecord, changed or damaged"):
        PretrainingRecords(tmp_path / "even")


@pytest.mark.parametrize("index", ["kept", "cut", "removed"])
@pytest.mark.parametrize("verify", [True, False])
def test_records_refuse_file_cut_between_two_records(folder, index, verify):
    path = folder / "train-00001-of-00002.tfrecord"
    index_path = Path(f"{path}.index")
    offsets = np.fromfile(index_path, "<u8")
    path.write_bytes(path.read_bytes()[: int(offsets[6])])
    if index == "removed":
        index_path.unlink()
    elif index == "cut":
        index_path.write_bytes(offsets[:7].tobytes())
    if index != "kept":
        assert len(TFRecordFile(path)) == 6  # without the manifest nothing tells
    with pytest.raises(ValueError, match="train-00001-of-00002.tfrecord, changed or damaged"):
        PretrainingRecords(folder, verify=verify)


def test_records_refuse_file_with_other_count_than_its_manifest(folder):
    manifest = read_manifest(folder)
    files = [dataclasses.replace(file, records=file.records and file.records + 1) for file in manifest.files]
    write_manifest(folder, "records", "k", manifest.config, {}, {}, files)
    with pytest.raises(ValueError, match="train-00000-of-00002.tfrecord, with 13 instead of 14"):
        PretrainingRecords(folder)


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("name", ["train-00002-of-00003.tfrecord", "train-00009-of-00002.tfrecord.index"])
def test_records_refuse_file_that_no_manifest_names(folder, name, verify):
    shutil.copy(folder / "train-00000-of-00002.tfrecord", folder / name)
    with pytest.raises(ValueError, match=f"must be in the manifest. Received: .*{name}, which is not"):
        PretrainingRecords(folder, verify=verify)


def test_records_let_other_files_lie_beside_them(folder):
    (folder / "notes.txt").write_text("made on Monday")
    assert len(PretrainingRecords(folder)) == 23


def test_records_refuse_changed_vocabulary(folder):
    pieces = (folder / "vocab.txt").read_text().splitlines()
    pieces[10], pieces[11] = pieces[11], pieces[10]  # of the same size, to the byte
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
    with pytest.raises(ValueError, match="vocab.txt, changed or damaged"):
        PretrainingRecords(folder)


@pytest.mark.parametrize("pieces", [49, 51])
def test_records_refuse_vocabulary_of_another_size(folder, pieces):
    manifest = read_manifest(folder)
    lines = [*(folder / "vocab.txt").read_text().splitlines(), "more"][:pieces]
    (folder / "vocab.txt").write_text("\n".join(lines) + "\n")
    files = [file for file in manifest.files if "tfrecord" in file.name]
    write_manifest(folder, "records", "k", manifest.config, {}, {}, files)
    with pytest.raises(ValueError, match=f"of 50 pieces. Received: .*vocab.txt, with {pieces}"):
        PretrainingRecords(folder)


def test_records_refuse_folder_without_vocabulary(folder):
    (folder / "vocab.txt").unlink()
    files = read_manifest(folder).files
    write_manifest(folder, "records", "k", read_manifest(folder).config, {}, {}, files)
    with pytest.raises(FileNotFoundError, match="vocab.txt"):  # at the start, not when the model is saved
        PretrainingRecords(folder)


def test_records_refuse_the_vocabulary_of_another_model(folder, tmp_path):
    pieces = (folder / "vocab.txt").read_text().splitlines()
    (tmp_path / "same.txt").write_text("\r\n".join(pieces))  # other bytes, the same pieces
    assert len(PretrainingRecords(folder, vocabulary_file=tmp_path / "same.txt")) == 23
    pieces[10], pieces[11] = pieces[11], pieces[10]
    (tmp_path / "other.txt").write_text("\n".join(pieces))
    with pytest.raises(ValueError, match="records/vocab.txt, which is not that of .*other.txt"):
        PretrainingRecords(folder, vocabulary_file=tmp_path / "other.txt")


def test_records_refuse_files_without_manifest(folder):
    (folder / "manifest.json").unlink()  # as google-research's create_pretraining_data.py leaves them
    with pytest.raises(FileNotFoundError, match=r"must hold manifest\.json\. Received: .*records") as caught:
        PretrainingRecords(folder)
    assert "\n" not in str(caught.value)
    with pytest.raises(FileNotFoundError, match=r"must hold manifest\.json\. Received: .*\.tfrecord"):
        PretrainingRecords(folder / "train-00000-of-00002.tfrecord")


def test_records_refuse_other_kind_of_folder(tmp_path):
    write_manifest(tmp_path, "vocabulary", "k", {}, {}, {})
    with pytest.raises(ValueError, match="must hold records.*which holds vocabulary"):
        PretrainingRecords(tmp_path)


@pytest.mark.parametrize("masking", ["static", "dynamic"])
@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (None, "PLACE: A record must be a tf.train.Example. Received: 5 other bytes"),
        ({"segment_ids": np.array([1.5])}, "PLACE: A record must hold the feature `segment_ids`"),
        ({"input_ids": np.zeros(LENGTH - 1, int)}, "another `input_ids` in PLACE"),
        ({"masked_lm_ids": np.zeros(0, int)}, "another `masked_lm_ids` in PLACE"),
        ({"masked_lm_positions": np.array([1, -9, 0])}, "another `masked_lm_positions` in PLACE"),
        ({"input_ids": np.full(LENGTH, 50)}, "below the vocabulary's size, 50. Received: 50 in PLACE"),
        ({"input_ids": np.full(LENGTH, -2)}, "below the vocabulary's size, 50. Received: -2 in PLACE"),
        ({"masked_lm_ids": np.array([-1, 7, 0])}, "below the vocabulary's size, 50. Received: -1 in PLACE"),
    ],
)
def test_unusable_record_is_named_with_its_file(folder, change, rule, masking):
    """Whose checksum is good: another program may have written it."""
    path = folder / "train-00001-of-00002.tfrecord"
    records = list(TFRecordFile(path))
    records[2] = b"other" if change is None else encode_example(dict(decode_record(records[2])) | change)
    written = {file.name: file for file in write_tfrecords(path, records)}
    manifest = read_manifest(folder)
    files = [written.get(file.name, file) for file in manifest.files]
    config = manifest.config | {"masked_fraction": 0.15}
    write_manifest(folder, "records", manifest.key, config, {}, {}, files)
    batches = iter(pretraining_dataset(folder, batch_size=23, masking=masking))
    message = re.escape(rule).replace("PLACE", f"[Rr]ecord 2 of {re.escape(str(path))}")
    with pytest.raises(ValueError, match=f"^.*{message}"):  # in the first line: Grain adds some of its own
        next(batches)


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
from keras_bert_flow.records.event import encode_scalars
print(len(next(iter(pretraining_dataset({str(folder)!r}, 5)))[0]["token_ids"]), len(encode_scalars(1, 2.0, {{"a": 1}})))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert (done.returncode, done.stdout.split()[0]) == (0, "5"), done.stderr
