import importlib.util
import re
import subprocess
import sys

import pytest

from keras_bert_flow import installed
from keras_bert_flow.export.format import FORMATS, find_export_format
from keras_bert_flow.export.request import check_export, choose_backend
from keras_bert_flow.installed import BACKENDS, EXTRAS
from tests.oracles.other_tokenizers import make_byte_level
from tests.oracles.tiny_model import write_tiny_model
from tests.patience import PATIENCE_SECONDS


@pytest.mark.parametrize("name", FORMATS)
def test_every_backend_writes_a_format_or_has_a_reason_not_to(name):
    known = find_export_format(name)
    assert {*known.packages, *known.refusals} == {*BACKENDS} and not known.packages.keys() & known.refusals.keys()
    needed = {known.runtime}.union(*known.packages.values())
    assert needed <= EXTRAS.keys()
    for backend in known.packages:
        assert choose_backend(name, backend) == backend
    for backend, reason in known.refusals.items():
        with pytest.raises(ValueError, match=re.escape(f"Received: {backend}: {reason}. Use")) as caught:
            choose_backend(name, backend)
        assert "\n" not in str(caught.value)


def test_backend_of_the_environment_is_taken_where_it_can(monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    assert choose_backend("saved_model") == "jax"
    assert choose_backend("onnx") == "torch" and choose_backend("litert") == "tensorflow"
    monkeypatch.setenv("KERAS_BACKEND", "tensorflow")
    assert choose_backend("onnx") == "tensorflow"


def test_backend_that_is_installed_is_taken(monkeypatch):
    monkeypatch.delenv("KERAS_BACKEND")
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else find(name))
    assert choose_backend("onnx") == "tensorflow"
    with pytest.raises(ValueError, match="The backend must be installed"):
        choose_backend("onnx", "torch")


def test_unknown_format_is_refused():
    with pytest.raises(ValueError, match="must be one of onnx, saved_model, litert. Received: 'pickle'"):
        choose_backend("pickle")


def test_missing_packages_are_named_with_their_extra(monkeypatch, tmp_path):
    find, missing = importlib.util.find_spec, ("onnxruntime", "onnxscript")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in missing else find(name))
    model = write_tiny_model(tmp_path / "model")
    with pytest.raises(ValueError, match=r"Received: onnxscript, onnxruntime, .*keras-bert-flow\[export\]'"):
        check_export(model, tmp_path / "out", "onnx", "torch", False, None)
    check_export(model, tmp_path / "out", "saved_model", "tensorflow", False, None)


@pytest.mark.parametrize("version", ["2.9.1", "1.13.0+cpu", "2.10.0", "2.13.0+cpu"])
def test_release_that_cannot_write_a_format_is_refused(version, monkeypatch, tmp_path):
    monkeypatch.setattr(installed, "find_version", lambda distribution: version)
    model = write_tiny_model(tmp_path / "model")
    if version.startswith(("2.9", "1.13")):
        with pytest.raises(
            ValueError, match=rf"torch must be 2\.10 or newer for this. Received: {re.escape(version)}\."
        ):
            check_export(model, tmp_path / "out", "onnx", "torch")
    else:
        check_export(model, tmp_path / "out", "onnx", "torch")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "saved_model", "backend": "jax", "int8": True}, "must be written in float32"),
        ({"strings": True}, "ONNX must be given ids. Received: --strings"),
        ({"asked_as": "nothing"}, "must be one of task, .*Received: 'nothing'"),
        ({"folder": "none"}, "none"),
        ({"output": "."}, "must be new"),
    ],
)
def test_request_is_checked(changes, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_tiny_model(tmp_path / "model")
    given = {"folder": tmp_path / "model", "output": tmp_path / "out", "format": "onnx", "backend": "torch"}
    given |= {name: tmp_path / value if name in ("folder", "output") else value for name, value in changes.items()}
    with pytest.raises((ValueError, OSError), match=message):
        check_export(**{"int8": False, "asked_as": None} | given)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_strings_are_of_wordpiece_vocabularies(tmp_path):
    model = write_tiny_model(tmp_path / "model")
    (model / "vocab.txt").unlink()
    make_byte_level().save(str(model / "tokenizer.json"))
    with pytest.raises(ValueError, match="--strings must be of a WordPiece vocabulary"):
        check_export(model, tmp_path / "out", "saved_model", "tensorflow", strings=True)


def test_request_is_checked_without_keras(tmp_path):
    """A backend is chosen before Keras is imported."""
    model = write_tiny_model(tmp_path / "model")
    code = (
        "import sys, pathlib\nfrom keras_bert_flow.export.request import check_export, choose_backend\n"
        f"for name in {[*FORMATS]}:\n"
        f"    check_export(pathlib.Path({str(model)!r}), pathlib.Path('o'), name, choose_backend(name), False, None)\n"
        f"sys.exit(', '.join({{'keras', *{BACKENDS}}} & {{*sys.modules}}) or None)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_SECONDS, cwd=tmp_path
    )
    assert (done.returncode, done.stderr) == (0, "")
