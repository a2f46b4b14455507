"""`kbf predict` opens each file of its model once, between its check and its load."""

import json

import pytest

from keras_bert_flow.cli import load_commands
from keras_bert_flow.results.artifacts import OpenedFiles, file_digest
from keras_bert_flow.results.manifest import write_manifest
from tests.opened import counting_opens
from tests.oracles.tiny_model import write_tiny_model


@pytest.mark.parametrize("is_published", [False, True])
def test_predicting_opens_each_file_of_a_model_once(is_published, tmp_path, capfd):
    folder = write_tiny_model(tmp_path / "model", seed=0)
    expected = {path.name: 1 for path in folder.iterdir()}
    if is_published:
        write_manifest(folder, "finetuning", "0" * 16, {}, {}, {})
        expected |= {"manifest.json": 2}  # once for its lock, which keeps `kbf runs gc` from removing the folder
    application = load_commands(["predict"])
    with counting_opens(folder) as opened:
        application(["predict", "--model", str(folder), "a b c"], standalone_mode=False)
    assert json.loads(capfd.readouterr().out)["label"] in ("no", "yes")
    assert opened == expected


def test_an_opened_file_is_digested_as_it_was_read(tmp_path):
    path, files = tmp_path / "content", OpenedFiles()
    path.write_bytes(b"one")
    assert (files.read(path), files.read(path, 2)) == (b"one", b"on")
    assert files.digest(path) == file_digest(path)
    path.rename(tmp_path / "away")
    path.write_bytes(b"others")
    assert files.digest(path) == file_digest(path)
    assert files.read(path) == b"others"


def test_an_empty_file_is_read(tmp_path):
    (tmp_path / "empty").touch()
    assert OpenedFiles().read(tmp_path / "empty") == b""
