import json
from pathlib import Path

import pytest

from keras_bert_flow.results.artifacts import file_digest
from keras_bert_flow.results.manifest import (
    MANIFEST,
    FileSummary,
    check_folder,
    is_published,
    manifest_digest,
    read_manifest,
    write_manifest,
)


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.bin").write_bytes(b"0123456789")
    (tmp_path / "sub" / "é.bin").write_bytes(b"")
    write_manifest(tmp_path, "records", "k1", {"seed": 1, "list": [1, 2]}, {"corpus": "d"}, {"documents": 3})
    return tmp_path


def test_manifest_is_read_as_it_was_written(folder):
    manifest = read_manifest(folder)
    assert (manifest.stage, manifest.key) == ("records", "k1")
    assert (manifest.config, manifest.inputs) == ({"seed": 1, "list": [1, 2]}, {"corpus": "d"})
    assert manifest.counters == {"documents": 3}
    assert [(file.name, file.file_bytes, file.records) for file in manifest.files] == [
        ("a.bin", 10, None),
        ("sub/é.bin", 0, None),
    ]
    assert all(file.sha256 == file_digest(folder / file.name) for file in manifest.files)


def test_manifest_of_a_whole_folder_is_returned_by_the_check(folder):
    assert check_folder(folder) == check_folder(folder, "records", digests=False) == read_manifest(folder)


def test_manifest_takes_the_summaries_it_is_given_wherever_their_files_are(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    given = (FileSummary("a", 3, "of the writer", 7), FileSummary("in a store", 1, "", 1))
    assert write_manifest(tmp_path, "s", "k", {}, {}, {}, given).files == given


def test_manifest_can_be_written_again(folder):
    write_manifest(folder, "records", "k2", {}, {}, {})
    assert [file.name for file in check_folder(folder).files] == ["a.bin", "sub/é.bin"]


@pytest.mark.parametrize("digests", [True, False])
@pytest.mark.parametrize("content", [b"", b"012345678", b"0123456789a", None])
def test_check_names_a_file_of_another_size(folder, content, digests):
    path = folder / "a.bin"
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    error = FileNotFoundError if content is None else ValueError
    with pytest.raises(error, match=r"a\.bin, (missing|changed)"):
        check_folder(folder, digests=digests)
    assert not is_published(folder, "k1")


@pytest.mark.parametrize("bit", range(80))
def test_check_names_a_file_with_a_flipped_bit(folder, bit):
    content = bytearray(b"0123456789")
    content[bit // 8] ^= 1 << bit % 8
    (folder / "a.bin").write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.bin, changed"):
        check_folder(folder)


def test_check_refuses_another_stage(folder):
    with pytest.raises(ValueError, match=r"must hold vocabulary\. Received: .*which holds records"):
        check_folder(folder, "vocabulary")


def test_check_lets_files_be_that_no_manifest_names(folder):
    (folder / "train-00009-of-00010.tfrecord").write_bytes(b"stale")
    assert [file.name for file in check_folder(folder).files] == ["a.bin", "sub/é.bin"]


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "null", "{}", '{"files": 3}', '{"files": [{}]}', '{"files": []}', "\0"]
)
def test_manifest_that_is_damaged_is_refused(folder, content):
    (folder / MANIFEST).write_text(content)
    with pytest.raises(ValueError, match=r"manifest\.json, damaged"):
        check_folder(folder)
    assert not is_published(folder, "k1")


def test_manifest_cut_anywhere_is_refused(folder):
    whole = (folder / MANIFEST).read_bytes()
    for size in range(len(whole.rstrip())):
        (folder / MANIFEST).write_bytes(whole[:size])
        with pytest.raises(ValueError, match=r"manifest\.json, damaged"):
            read_manifest(folder)


def test_manifest_that_is_missing_means_an_unfinished_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"must hold manifest\.json"):
        check_folder(tmp_path)
    assert not is_published(tmp_path, "k1")
    assert not is_published(tmp_path / "nowhere", "k1")


def test_folder_is_published_under_its_own_key_alone(folder):
    assert is_published(folder, "k1")
    assert not is_published(folder, "k2")


def test_manifest_digest_depends_on_the_files_alone(folder, tmp_path_factory):
    before = manifest_digest(read_manifest(folder))
    write_manifest(folder, "other", "k2", {"seed": 2}, {}, {})
    assert manifest_digest(read_manifest(folder)) == before
    (folder / "a.bin").write_bytes(b"0123456780")
    write_manifest(folder, "records", "k1", {}, {}, {})
    assert manifest_digest(read_manifest(folder)) != before


def test_manifest_is_json_that_other_tools_read(folder):
    values = json.loads((folder / MANIFEST).read_text())
    names = ["config", "counters", "digest", "files", "inputs", "key", "revision", "stage", "version"]
    assert sorted(values) == names


def test_manifest_has_the_revision_and_one_of_an_earlier_version_none(folder):
    write_manifest(folder, "records", "k1", {}, {}, {}, revision=3)
    assert read_manifest(folder).revision == 3
    values = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps(values | {"revision": "3", "digest": ""}))
    with pytest.raises(ValueError, match="damaged"):
        read_manifest(folder)
    del values["revision"], values["digest"]
    (folder / MANIFEST).write_text(json.dumps(values))
    assert read_manifest(folder).revision is None and is_published(folder, "k1")
