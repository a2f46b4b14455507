import pickle
from pathlib import Path

import pytest

from keras_bert_flow.records.tfrecord import INDEX_SUFFIX, TFRecordFile, masked_crc, write_tfrecords
from keras_bert_flow.results.artifacts import file_digest

RECORDS = (b"", b"a", b"\0" * 100, bytes(range(256)) * 300, b"last")
SMALL = (b"abc", b"", b"defgh")
BORDERS = (0, 19, 35, 56)  # each record takes 16 bytes more than it holds


def write(folder: Path, with_index: bool = True) -> Path:
    path = folder / "train-0.tfrecord"
    write_tfrecords(path, SMALL)
    if not with_index:
        index_of(path).unlink()
    return path


def index_of(path: Path) -> Path:
    return path.with_name(path.name + INDEX_SUFFIX)


def read_all(path: Path) -> list[bytes]:
    file = TFRecordFile(path)
    return [file[position] for position in range(len(file))]


def flips(content: bytes):
    """Yield the content with each of its bits flipped in turn."""
    for bit in range(8 * len(content)):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        yield bytes(damaged)


def test_tfrecord_is_read_from_the_file_as_from_memory(tmp_path):
    path = write(tmp_path)
    file = TFRecordFile(path, mapped=False)
    assert list(pickle.loads(pickle.dumps(file))) == list(file) == list(SMALL)
    content = path.read_bytes()
    for damaged in flips(content):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="damaged"):
            list(TFRecordFile(path, mapped=False))


def test_index_is_the_same_however_much_of_it_is_held(tmp_path, monkeypatch):
    path = write(tmp_path)
    wanted, summaries = index_of(path).read_bytes(), write_tfrecords(path, SMALL)
    for held in (1, 2, 4):
        monkeypatch.setattr("keras_bert_flow.records.tfrecord._HELD_OFFSETS", held)
        assert write_tfrecords(path, SMALL) == summaries
        assert index_of(path).read_bytes() == wanted
        assert summaries[1].sha256 == file_digest(index_of(path))


def test_tfrecord_of_ours_is_read_by_beam(tmp_path):
    beam = pytest.importorskip("apache_beam")
    from apache_beam.testing.test_pipeline import TestPipeline
    from apache_beam.testing.util import assert_that, equal_to

    write_tfrecords(tmp_path / "ours.tfrecord", RECORDS)
    with TestPipeline(runner="FnApiRunner") as pipeline:
        assert_that(pipeline | beam.io.ReadFromTFRecord(str(tmp_path / "ours.tfrecord")), equal_to(list(RECORDS)))


@pytest.mark.parametrize("with_index", [True, False])
def test_tfrecord_gives_any_record_in_any_order(with_index, tmp_path):
    file = TFRecordFile(write(tmp_path, with_index))
    assert len(file) == 3
    assert [file[position] for position in (2, 0, 1, 2)] == [SMALL[2], SMALL[0], SMALL[1], SMALL[2]]
    assert list(file) == list(SMALL)
    for position in (-1, 3):
        with pytest.raises(IndexError, match="train-0"):
            file[position]


def test_tfrecord_summaries_say_what_was_written(tmp_path):
    summaries = write_tfrecords(tmp_path / "a.tfrecord", iter(SMALL))
    assert [(summary.name, summary.records) for summary in summaries] == [("a.tfrecord", 3), ("a.tfrecord.index", None)]
    for summary in summaries:
        assert summary.file_bytes == (tmp_path / summary.name).stat().st_size
        assert summary.sha256 == file_digest(tmp_path / summary.name)


def test_tfrecord_of_no_records_is_an_empty_file(tmp_path):
    assert write_tfrecords(tmp_path / "a.tfrecord", [])[0].file_bytes == 0
    assert len(TFRecordFile(tmp_path / "a.tfrecord")) == 0


def test_tfrecord_file_can_be_sent_to_a_worker(tmp_path):
    assert list(pickle.loads(pickle.dumps(TFRecordFile(write(tmp_path))))) == list(SMALL)


@pytest.mark.parametrize("with_index", [True, False])
def test_tfrecord_notices_every_flipped_bit(with_index, tmp_path):
    path = write(tmp_path, with_index)
    for damaged in flips(path.read_bytes()):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"train-0\.tfrecord") as caught:
            read_all(path)
        assert "\n" not in str(caught.value)


def test_tfrecord_reads_the_good_records_of_a_damaged_file(tmp_path):
    path = write(tmp_path)
    damaged = bytearray(path.read_bytes())
    damaged[12] ^= 1  # the first byte of the first record's data
    path.write_bytes(damaged)
    file = TFRecordFile(path)
    assert (file[1], file[2]) == SMALL[1:]
    with pytest.raises(ValueError, match="record 0 of"):
        file[0]


@pytest.mark.parametrize("size", range(BORDERS[-1]))
def test_tfrecord_with_an_index_notices_every_cut(size, tmp_path):
    path = write(tmp_path)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ValueError, match=r"train-0\.tfrecord"):
        TFRecordFile(path)


@pytest.mark.parametrize("size", range(BORDERS[-1]))
def test_tfrecord_without_an_index_notices_every_cut_but_between_records(size, tmp_path):
    path = write(tmp_path, with_index=False)
    path.write_bytes(path.read_bytes()[:size])
    if size in BORDERS:  # nothing in the format tells; the manifest does
        assert read_all(path) == list(SMALL[: BORDERS.index(size)])
    else:
        with pytest.raises(ValueError, match=r"train-0\.tfrecord"):
            TFRecordFile(path)


def test_tfrecord_notices_every_flipped_bit_of_the_index(tmp_path):
    path = write(tmp_path)
    for damaged in flips(index_of(path).read_bytes()):
        index_of(path).write_bytes(damaged)
        with pytest.raises(ValueError, match=r"train-0\.tfrecord"):
            read_all(path)


@pytest.mark.parametrize("size", range(32))
def test_tfrecord_notices_every_cut_of_the_index(size, tmp_path):
    path = write(tmp_path)
    index_of(path).write_bytes(index_of(path).read_bytes()[:size])
    with pytest.raises(ValueError, match=r"train-0\.tfrecord"):
        TFRecordFile(path)


def test_tfrecord_survives_an_absurd_length(tmp_path):
    path = tmp_path / "train-0.tfrecord"
    from keras_bert_flow.records.tfrecord import masked_crc

    length = b"\xff" * 8
    path.write_bytes(length + masked_crc(length).to_bytes(4, "little") + b"data")
    with pytest.raises(ValueError, match=r"train-0\.tfrecord"):
        TFRecordFile(path)


def test_tfrecord_names_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"train-9\.tfrecord"):
        TFRecordFile(tmp_path / "train-9.tfrecord")


@pytest.mark.parametrize("index_bytes", [10 << 30, 7, 33, 8 * 100])
def test_index_of_another_size_is_refused_unread(tmp_path, index_bytes):
    path = write(tmp_path)
    with open(index_of(path), "r+b") as file:
        file.truncate(index_bytes)
    with pytest.raises(ValueError, match=r"index must have the offset of each record|end where its index"):
        TFRecordFile(path)


@pytest.mark.parametrize("length", [2**60, 2**63, 2**64 - 1, 10**9])
def test_records_of_any_length_are_refused(tmp_path, length):
    """The length has the right checksum, and there is no index."""
    path = tmp_path / "train-0.tfrecord"
    head = length.to_bytes(8, "little")
    path.write_bytes(head + masked_crc(head).to_bytes(4, "little") + bytes(100))
    with pytest.raises(ValueError, match="end where its index"):
        TFRecordFile(path)


@pytest.mark.parametrize("offsets", [(0, 2**63, 56), (0, 2**64 - 1, 56), (40, 20, 56), (0, 0, 56), (0, 56)])
def test_offsets_of_any_size_are_refused(tmp_path, offsets):
    path = write(tmp_path)
    index_of(path).write_bytes(b"".join(offset.to_bytes(8, "little") for offset in offsets))
    with pytest.raises(ValueError, match="checksum written with it|end where its index"):
        read_all(path)
