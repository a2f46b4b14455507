import shutil

import pytest

from keras_bert_flow.records.tfrecord import check_records, find_extra_files
from keras_bert_flow.results.manifest import read_manifest, write_manifest
from tests.oracles.tiny_records import write_tiny_records


@pytest.fixture
def folder(tmp_path):
    return write_tiny_records(tmp_path / "records")


def test_whole_folder_gives_its_manifest(folder):
    assert check_records(folder) == check_records(folder, digests=False) == read_manifest(folder)
    assert find_extra_files(folder, read_manifest(folder)) == []


@pytest.mark.parametrize("name", ["train-00001-of-00002.tfrecord", "train-00001-of-00002.tfrecord.index", "vocab.txt"])
@pytest.mark.parametrize("damage", ["missing", "flipped", "longer"])
def test_file_that_is_not_as_it_was_made_is_named(folder, name, damage):
    content = bytearray((folder / name).read_bytes())
    if damage == "missing":
        (folder / name).unlink()
    else:
        content[len(content) // 2] ^= 1
        (folder / name).write_bytes(content if damage == "flipped" else content + b"\0")
    with pytest.raises((FileNotFoundError, ValueError), match=rf"records/{name}, (missing|changed)") as caught:
        check_records(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["train-9.tfrecord", "aside.tfrecord", "train-00000-of-00002.tfrecord.old.index"])
def test_added_file_of_records_is_named(folder, name):
    shutil.copy(folder / "train-00000-of-00002.tfrecord", folder / name)
    assert find_extra_files(folder, read_manifest(folder)) == [name]
    with pytest.raises(ValueError, match=f"in the manifest. Received: .*records/{name}, which is not") as caught:
        check_records(folder, digests=False)
    assert "\n" not in str(caught.value)


def test_index_added_to_files_that_had_none_is_named(folder):
    """An index is believed where it lies beside its file, so one that is in no manifest must not lie there."""
    index = folder / "train-00000-of-00002.tfrecord.index"
    content = index.read_bytes()
    index.unlink()
    write_manifest(folder, "records", "k", read_manifest(folder).config, {}, {})
    check_records(folder)
    index.write_bytes(content)
    with pytest.raises(ValueError, match=index.name):
        check_records(folder)


def test_other_files_may_lie_there(folder):
    (folder / "README.md").write_text("mine")
    (folder / "old").mkdir()
    shutil.copy(folder / "train-00000-of-00002.tfrecord", folder / "old")
    check_records(folder)


def test_another_kind_of_folder_is_refused(tmp_path):
    write_manifest(tmp_path, "vocabulary", "k", {}, {}, {})
    with pytest.raises(ValueError, match="must hold records"):
        check_records(tmp_path)
