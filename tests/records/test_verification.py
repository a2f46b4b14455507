import json

import pytest

from keras_bert_flow.results import artifacts
from keras_bert_flow.results.artifacts import file_digest
from keras_bert_flow.results.manifest import MANIFEST, read_manifest, write_manifest
from keras_bert_flow.results.publishing import find_manifest, verify


@pytest.fixture
def published(tmp_path):
    folder = tmp_path / "runs" / "pretraining" / "key"
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "model.safetensors").write_bytes(b"weights")
    (folder / "model" / "vocab.txt").write_bytes(b"a\nb\n")
    (folder / "log.jsonl").write_bytes(b"{}\n")
    write_manifest(folder, "pretraining", "k", {"steps": 10}, {"records": "d"}, {"documents": 2})
    return folder


def flip(path, bit=0):
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


@pytest.mark.parametrize("given", ["model/model.safetensors", "model", ".", "model/vocab.txt"])
def test_whole_files_are_accepted_wherever_their_manifest_is(published, given):
    verify(published / given)
    (published.parent / "link").symlink_to(published)
    verify(published.parent / "link" / given)


@pytest.mark.parametrize("given", ["model/model.safetensors", "model", "."])
def test_flipped_bit_is_named_with_both_digests(published, given):
    path = published / "model" / "model.safetensors"
    expected = file_digest(path)[:12]
    flip(path)
    with pytest.raises(ValueError, match=rf"safetensors, .*sha256 {file_digest(path)[:12]}, not {expected}\. Build"):
        verify(published / given)
    verify(published / "model" / "vocab.txt", published / "log.jsonl")  # which are not read with it


def test_missing_file_of_a_model_is_named(published):
    (published / "model" / "vocab.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"vocab\.txt, missing"):
        verify(published / "model")


def test_files_without_a_manifest_are_not_verified(published, tmp_path):
    (tmp_path / "own.txt").write_text("a")
    (published / "model" / "notes.txt").write_text("a")
    verify(tmp_path / "own.txt", tmp_path, published / "model" / "notes.txt", published / "model")


@pytest.mark.parametrize("content", ['{"name": "app", "version": "1", "manifest_version": 3, "key": "x"}', "//", "[]"])
def test_manifests_of_other_programs_are_passed_over(published, tmp_path, content):
    (published / "model" / MANIFEST).write_text(content)
    assert find_manifest(published / "model")[0] == published
    (tmp_path / MANIFEST).write_text(content)
    assert find_manifest(tmp_path / "runs") is None
    with open(tmp_path / MANIFEST, "wb") as file:
        file.truncate(1 << 40)  # nobody reads a terabyte to see whose it is
    assert find_manifest(tmp_path / "runs") is None


def test_any_flipped_bit_of_a_manifest_is_seen(published):
    path = published / MANIFEST
    whole = path.read_bytes()
    for bit in range(0, 8 * len(whole.rstrip()), 5):  # in most bytes, and at each place in a byte
        flip(path, bit)
        with pytest.raises(ValueError, match=r"manifest\.json, damaged|must name files of its folder"):
            verify(published / "model")
        path.write_bytes(whole)
    verify(published / "model")


def test_manifest_without_a_digest_is_read(published):
    values = json.loads((published / MANIFEST).read_text())
    assert len(values.pop("digest")) == 64
    (published / MANIFEST).write_text(json.dumps(values))
    assert read_manifest(published).digest == ""
    verify(published / "model")


def test_file_is_read_once_in_a_process_unless_it_changes(tmp_path, monkeypatch):
    path, reads = tmp_path / "a", []
    path.write_bytes(b"a")
    digest_file = artifacts.hashlib.file_digest
    monkeypatch.setattr(artifacts.hashlib, "file_digest", lambda *args: reads.append(1) or digest_file(*args))
    assert file_digest(path) == file_digest(path) and len(reads) == 2  # it may be changed again within a clock tick
    now = artifacts.time.time()
    monkeypatch.setattr(artifacts.time, "time", lambda: now + 60)
    first = file_digest(path)
    assert file_digest(path) == first and len(reads) == 3
    path.write_bytes(b"b")
    assert file_digest(path) != first and len(reads) == 4
