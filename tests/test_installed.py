"""A user's modules with the names of ours stay out: in a working directory, on PYTHONPATH and in site-packages."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from keras_bert_flow.installed import ROOT, child_environment
from tests.patience import PATIENCE_SECONDS
from tests.strangers import write_strangers

IMPORTED = "import flows, beam_jobs, json, random; print(flows.__file__, beam_jobs.__file__)"
CHECK = "from keras_bert_flow.installed import check_packages; check_packages()"


def run_python(*arguments: str, folder: Path, **environment: str) -> subprocess.CompletedProcess:
    plain = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONSAFEPATH")}
    command = (sys.executable, *arguments)
    return subprocess.run(
        command, cwd=folder, env=plain | environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )


@pytest.mark.parametrize("path", ["", "{0}", "/elsewhere{0}"], ids=repr)
def test_children_import_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str):
    """Also where a stray separator in PYTHONPATH stands for the working directory."""
    monkeypatch.setenv("PYTHONPATH", path.format(os.pathsep))
    write_strangers(tmp_path)
    done = run_python("-c", IMPORTED, folder=tmp_path, **child_environment())
    assert done.stdout.split() == [str(ROOT / name / "__init__.py") for name in ("flows", "beam_jobs")], done.stderr


def test_path_of_an_installed_project_is_left_to_python(tmp_path: Path):
    """PYTHONPATH goes before the standard library, where site-packages must not be."""
    place = tmp_path / "site-packages"
    (place / "keras_bert_flow").mkdir(parents=True)
    for name in ("__init__.py", "installed.py"):
        shutil.copy(ROOT / "keras_bert_flow" / name, place / "keras_bert_flow")
    code = (
        f"import site; site.getsitepackages = lambda: [{str(place)!r}]; import sys; sys.path.append({str(place)!r}); "
        "from keras_bert_flow.installed import child_environment; print(child_environment())"
    )
    done = run_python("-I", "-S", "-c", code, folder=tmp_path)
    assert done.stdout.strip() == "{'PYTHONSAFEPATH': '1', 'PYTHONPATH': ''}", done.stderr


@pytest.mark.parametrize("name", ["flows", "beam_jobs"])
def test_package_of_others_is_refused_in_one_line(tmp_path: Path, name: str):
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("raise SystemExit('imported')\n")
    path = os.pathsep.join((str(tmp_path), str(ROOT)))
    code = "from keras_bert_flow.cli import main; main()"
    done = run_python("-c", code, "doctor", "corpus.txt", folder=tmp_path, PYTHONPATH=path, PYTHONSAFEPATH="1")
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2
    assert line.startswith(f"kbf: The package `{name}` must be that of keras-bert-flow. Received: {tmp_path / name}")


@pytest.mark.parametrize("init", ["VERSION = '1.0'\n", None], ids=["overwritten", "namespace"])
def test_package_that_was_overwritten_is_refused(tmp_path: Path, init: str | None):
    """As by another distribution that installs a `flows` of its own into the same site-packages."""
    ours = ("keras_bert_flow/__init__.py", "keras_bert_flow/installed.py")
    for name in (*ours, "beam_jobs/__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "flows").mkdir()
    shutil.copy(ROOT / "flows" / "__init__.py", tmp_path / "flows")
    assert run_python("-c", CHECK, folder=tmp_path).returncode == 0
    if init is None:
        (tmp_path / "flows" / "__init__.py").unlink()
    else:
        (tmp_path / "flows" / "__init__.py").write_text(init)
    assert "ValueError: The package `flows` must be" in run_python("-c", CHECK, folder=tmp_path).stderr
