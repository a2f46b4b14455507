"""What a user gets who installs the wheel: the command, the configurations, and nothing that is not theirs."""

import email
import os
import runpy
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from keras_bert_flow.config.loading import load_config
from tests.patience import PATIENCE_SECONDS
from tests.strangers import write_strangers

ROOT = Path(__file__).parents[1]
WORDS = (("fine", "good"), ("dull", "bad"))
NAMES = {path.relative_to(ROOT / "configs").with_suffix("").as_posix() for path in (ROOT / "configs").rglob("*.yaml")}


CHECK = runpy.run_path(str(ROOT / ".ci" / "check_release.py"))
VERSION, REPOSITORY = CHECK["read_version"](), "https://github.com/someone/keras-bert-flow"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel and the source distribution, as the workflow of a release does."""
    pytest.importorskip("hatchling")
    place = tmp_path_factory.mktemp("wheel")
    build = (sys.executable, "-m", "hatchling", "build", "--directory", str(place))
    release = os.environ | {"GITHUB_SERVER_URL": "https://github.com", "GITHUB_REPOSITORY": "someone/keras-bert-flow"}
    subprocess.run(build, cwd=ROOT, env=release, check=True, capture_output=True, timeout=PATIENCE_SECONDS)
    return place


@pytest.fixture(scope="module")
def installed(built: Path) -> Path:
    """Install the wheel, without its dependencies, in a folder of its own."""
    place, (wheel,) = built, built.glob("*.whl")
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


def test_wheel_holds_the_packages_and_their_files_alone(built: Path):
    with zipfile.ZipFile(built / f"keras_bert_flow-{VERSION}-py3-none-any.whl") as wheel:
        names = set(wheel.namelist())
    about = f"keras_bert_flow-{VERSION}.dist-info"
    assert {name.split("/")[0] for name in names} == {"keras_bert_flow", "beam_jobs", "flows", about}
    assert names >= {"keras_bert_flow/py.typed", "flows/prefect.yaml", f"{about}/licenses/LICENSE"}
    kinds = {".py", ".yaml", ".typed", "", ".txt"}  # the last two: Dockerfiles and metadata
    assert {Path(name).suffix for name in names} == kinds
    for package in ("keras_bert_flow", "beam_jobs", "flows"):
        sources = {path.relative_to(ROOT).as_posix() for path in (ROOT / package).rglob("*.py")}
        assert sources <= names


def test_source_distribution_builds_and_tests_itself(built: Path):
    with tarfile.open(built / f"keras_bert_flow-{VERSION}.tar.gz") as source:
        names = {name.partition("/")[2] for name in source.getnames()}
    assert names >= {"LICENSE", "README.md", "pyproject.toml", "constraints.txt", "configs/quickstart.yaml"}
    assert names >= {".ci/release_metadata.py", "tests/test_wheel.py", "keras_bert_flow/py.typed", "PKG-INFO"}
    assert not [name for name in names if "__pycache__" in name or name.startswith((".git/", ".github/", "runs/"))]


def test_metadata_lead_from_pypi_to_the_repository(built: Path):
    with zipfile.ZipFile(built / f"keras_bert_flow-{VERSION}-py3-none-any.whl") as wheel:
        metadata = email.message_from_bytes(wheel.read(f"keras_bert_flow-{VERSION}.dist-info/METADATA"))
    assert (metadata["Name"], metadata["Version"], metadata["Requires-Python"]) == (
        "keras-bert-flow",
        VERSION,
        ">=3.11",
    )
    assert f"Repository, {REPOSITORY}" in metadata.get_all("Project-URL")
    assert metadata["Description-Content-Type"] == "text/markdown"
    page = MarkdownIt("commonmark").enable("table").parse(metadata.get_payload(decode=True).decode())
    parts = [child for token in page for child in token.children or ()]
    places = [part.attrs.get("href") or part.attrs["src"] for part in parts if part.type in ("link_open", "image")]
    assert f"{REPOSITORY}/blob/v{VERSION}/docs/tutorial.md" in places
    assert f"{REPOSITORY}/raw/v{VERSION}/docs/images/report.png" in places
    assert all(place.startswith("https://") for place in places)
    for place in places:
        if f"/v{VERSION}/" in place:
            assert (ROOT / place.partition(f"/v{VERSION}/")[2].partition("#")[0]).is_file(), place


def test_version_citation_and_changelog_agree():
    assert CHECK["find_faults"]() == []


@pytest.mark.parametrize(
    ("file", "old", "new", "tag", "fault"),
    [
        ("CITATION.cff", VERSION, "9.9.9", f"v{VERSION}", "CITATION.cff must name the version"),
        ("CHANGELOG.md", f"## [{VERSION}] - 2026-01-31", "", f"v{VERSION}", f"must have `## [{VERSION}] - DATE`"),
        ("CHANGELOG.md", " - 2026-01-31", "", f"v{VERSION}", "no date of"),
        ("CHANGELOG.md", "## [Unreleased]", "", f"v{VERSION}", "must begin with `## [Unreleased]`"),
        ("CHANGELOG.md", "", "", "v9.9.9", "The tag must be v and the version"),
        ("CHANGELOG.md", "", "", VERSION, "The tag must be v and the version"),
        ("CHANGELOG.md", "", "", f"v{VERSION}", None),
    ],
)
def test_tag_must_agree_with_version_and_changelog(file, old, new, tag, fault, tmp_path: Path):
    for name in ("CITATION.cff", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n## [Unreleased]\n\n## [{VERSION}] - 2026-01-31\n\n- New.\n")
    text = (tmp_path / file).read_text()
    (tmp_path / file).write_text(text.replace(old, new, 1) if old else text)
    faults = CHECK["find_faults"](tmp_path, tag)
    assert (faults == []) if fault is None else any(fault in found for found in faults), faults


@pytest.mark.slow
def test_installed_command_helps_and_drafts_a_configuration(kbf, tmp_path: Path):
    done = kbf("--help")
    assert done.returncode == 0 and "init" in done.stdout, done.stderr
    assert kbf("--version").stdout.splitlines()[0].startswith("keras-bert-flow ")
    rows = [f"a {word} film of {number}\t{label}" for number in range(40) for word, label in WORDS]
    (tmp_path / "train.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
    (tmp_path / "text.txt").write_text("\n\n".join(f"A film of {number}. It is long." for number in range(400)))
    done = kbf("init", "text.txt", "--task", "train.tsv", "--output", "mine.yaml")
    assert done.returncode == 0, done.stderr
    assert load_config(tmp_path / "mine.yaml").task.kind == "classification"


def test_configs_are_listed(kbf):
    done = kbf("configs", "list")
    lines = dict(line.split("  ", 1) for line in done.stdout.splitlines())
    assert lines.keys() == NAMES | {"prefect"}, done.stderr
    assert lines["tasks/cola"].strip() == "CoLA: is a sentence good English? Measured by Matthews' correlation."


@pytest.mark.slow
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
