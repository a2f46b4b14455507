"""A whole run, and the questions to its model, where one backend is installed and the others are not."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.flows.conftest import ROOT
from tests.patience import PATIENCE_SECONDS

# Found by Python as it starts, and by every process that a run starts.
HIDING = """
import sys

class Hiding:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {hidden!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

import importlib.util
find, sys.meta_path[:0] = importlib.util.find_spec, [Hiding()]
importlib.util.find_spec = lambda name, package=None: None if name in {hidden!r} else find(name, package)
"""


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["torch", "tensorflow", "jax"])
def test_run_needs_no_other_backend(tiny_config: Path, tmp_path: Path, backend: str):
    hidden = {"jax", "jaxlib", "tensorflow", "tensorflow_text", "torch", "tf2onnx"} - {backend, f"{backend}lib"}
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(HIDING.format(hidden=hidden))
    unset = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "KERAS_"))}
    environment = unset | {"PREFECT_HOME": str(tmp_path), "PYTHONPATH": f"{tmp_path / 'site'}{os.pathsep}{ROOT}"}

    def kbf(*arguments: str) -> str:
        command = [sys.executable, "-m", "keras_bert_flow", *arguments]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert Path(kbf("run", tiny_config.name).splitlines()[-1]).name == "report.html"
    assert json.loads(kbf("predict", tiny_config.name, "the cat sees the dog"))["label"] in ("0", "1")
    if backend != "jax":  # whose models are exported by way of TensorFlow
        kbf("export", tiny_config.name, "exported", "--format", "onnx" if backend == "torch" else "saved_model")
