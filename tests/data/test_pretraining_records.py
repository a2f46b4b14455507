"""Records that changed, moved, went missing or cannot be used are refused, each with the file that is to blame."""

import dataclasses
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from keras_bert_flow.data.pretraining import pretraining_dataset
from keras_bert_flow.data.pretraining_records import PretrainingRecords
from keras_bert_flow.records.example import decode_record
from keras_bert_flow.records.tfrecord import TFRecordFile, write_tfrecords
from keras_bert_flow.results.manifest import read_manifest, write_manifest
from tests.oracles.examples import encode_example
from tests.oracles.tiny_records import SEQUENCE_LENGTH, write_tiny_records

pytestmark = pytest.mark.any_backend


def flip_byte(path, place):
    content = bytearray(path.read_bytes())
    content[int(len(content) * place)] ^= 1
    path.write_bytes(content)


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
    with pytest.raises(ValueError, match="records/vocab.txt and .*other.txt, with other pieces"):
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
        ({"input_ids": np.zeros(SEQUENCE_LENGTH - 1, int)}, "another `input_ids` in PLACE"),
        ({"masked_lm_ids": np.zeros(0, int)}, "another `masked_lm_ids` in PLACE"),
        ({"masked_lm_positions": np.array([1, -9, 0])}, "another `masked_lm_positions` in PLACE"),
        ({"input_ids": np.full(SEQUENCE_LENGTH, 50)}, "below the vocabulary's size, 50. Received: 50 in PLACE"),
        ({"input_ids": np.full(SEQUENCE_LENGTH, -2)}, "below the vocabulary's size, 50. Received: -2 in PLACE"),
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
