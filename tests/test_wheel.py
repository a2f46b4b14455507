"""What a user gets who installs the wheel: the command, and the configurations."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE_SECONDS
from tests.strangers import write_strangers

ROOT = Path(__file__).parents[1]
NAMES = {path.relative_to(ROOT / "configs").with_suffix("").as_posix() for path in (ROOT / "configs").rglob("*.yaml")}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel and install it, without its dependencies, in a folder of its own."""
    pytest.importorskip("hatchling")
    place = tmp_path_factory.mktemp("wheel")
    build = (sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(place))
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=PATIENCE_SECONDS)
    (wheel,) = place.glob("*.whl")
    install = ("install", "--quiet", "--no-deps", "--no-index", "--no-compile", "--target", place / "site", wheel)
    subprocess.run((sys.executable, "-m", "pip", *install), check=True, capture_output=True, timeout=PATIENCE_SECONDS)
    return place / "site"


@pytest.fixture
def kbf(installed: Path, tmp_path: Path):
    """Return a function that runs the installed command among modules of a user's that have the names of ours."""
    write_strangers(tmp_path)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    environment["PYTHONPATH"] = str(installed)

    def run(*arguments: str) -> subprocess.CompletedProcess:
        command = (sys.executable, installed / "bin" / "kbf", *arguments)
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS
        )

    return run


def test_configs_are_listed(kbf):
    done = kbf("configs", "list")
    lines = dict(line.split("  ", 1) for line in done.stdout.splitlines())
    assert lines.keys() == NAMES | {"prefect"}, done.stderr
    assert lines["tasks/cola"].strip() == "CoLA: is a sentence good English? Measured by Matthews' correlation."


def test_configs_are_copied_and_never_overwritten(kbf, tmp_path: Path):
    (tmp_path / "folder").mkdir()
    for name, *target, copy in [
        ("quickstart", "quickstart.yaml"),
        ("tasks/cola", "mine/task.yaml", "mine/task.yaml"),
        ("configs/tasks/cola.yaml", "folder", "folder/cola.yaml"),
    ]:
        assert kbf("configs", "copy", name, *target).stdout == f"{copy}\n"
        source = ROOT / "configs" / f"{name.removeprefix('configs/').removesuffix('.yaml')}.yaml"
        assert (tmp_path / copy).read_bytes() == source.read_bytes()
    (tmp_path / "quickstart.yaml").write_text("mine")
    done = kbf("configs", "copy", "quickstart")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("kbf: The copy must be a new file. Received: quickstart.yaml, which exists.")
    assert (tmp_path / "quickstart.yaml").read_text() == "mine"
    assert "Try kbf configs copy tasks/cola" in kbf("configs", "copy", "task/cola").stderr


def test_deployments_are_copied(kbf, tmp_path: Path):
    kbf("configs", "copy", "prefect")
    assert (tmp_path / "prefect.yaml").read_bytes() == (ROOT / "flows" / "prefect.yaml").read_bytes()


def test_installed_packages_are_their_own(kbf, tmp_path: Path):
    """The doctor's check of the packages, and its own imports, work from the folder of the installation."""
    (tmp_path / "a.txt").write_text("One sentence. And another.\n\nA second document. It ends.\n")
    done = kbf("doctor", "a.txt")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
