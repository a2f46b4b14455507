"""Install the oldest releases that `pyproject.toml` allows, an extra at a time, and run its tests with them.

    python -m tests.floors            # all of `TESTS`; or some: python -m tests.floors hub beam

Each extra gets an environment of its own, which is removed: the core and the extra at their floors, and what its tests
need besides. `make test-floors` takes an hour and several gigabytes of downloads.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
MODELS = ("tests/models/test_backbone.py", "tests/training/test_pretrain.py", "tests/data/test_pretraining.py")
# Extra → what its tests are, and which packages they need besides
TESTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "jax": (MODELS, ()),
    "tensorflow": (MODELS, ()),
    "torch": (MODELS, ()),
    "beam": (("tests/beam_jobs/test_build_vocabulary.py", "tests/beam_jobs/test_build_records.py"), ()),
    "flows": (("tests/flows/test_pipeline.py",), ("apache-beam",)),
    "s3": (("tests/stores/test_fetching.py",), ("moto[s3,server]",)),
    "gcs": (("tests/stores/test_google_storage.py",), ("gcp-storage-emulator", "apache-beam")),
    "hub": (("tests/stores/test_hub.py", "tests/stores/test_hub_upload.py"), ()),
    "plots": (("tests/evaluation/test_report.py",), ()),
}
BACKENDS = ("jax", "tensorflow", "torch")
FLOOR = re.compile(r"([A-Za-z0-9_.-]+)(?:\[[^]]*\])?\s*>=\s*([0-9.]+)")


def list_floors(extras: list[str]) -> list[str]:
    """Return the oldest allowed release of each package that the core or an extra names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = [*project["dependencies"], *(need for extra in extras for need in project["optional-dependencies"][extra])]
    return [f"{found[1]}=={found[2]}" for need in needed if (found := FLOOR.match(need))]


def test_extra(extra: str) -> int:
    """Run the tests of an extra at its floors, and return their status."""
    backend = extra if extra in BACKENDS else "jax"
    extras = sorted({extra, backend})
    tests, besides = TESTS[extra]
    with tempfile.TemporaryDirectory() as folder:
        python = Path(folder) / "bin" / "python"
        constraints = Path(folder) / "floors.txt"
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        constraints.write_text("\n".join(list_floors(extras)) + "\n")
        install = [
            python,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--constraint",
            constraints,
        ]
        packages = ["--editable", f"{ROOT}[{','.join(extras)}]", "pytest>=8.3", "pytest-timeout>=2.3", *besides]
        subprocess.run([*install, *packages], check=True)
        command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow or any_backend", *tests]
        return subprocess.run(command, cwd=ROOT, env=os.environ | {"KERAS_BACKEND": backend}, check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("extras", nargs="*", default=list(TESTS), choices=TESTS)
    statuses = {}
    for extra in parser.parse_args().extras:
        print(f"{extra}: {', '.join(list_floors([extra]))}", flush=True)
        statuses[extra] = test_extra(extra)
    failed = [extra for extra, status in statuses.items() if status]
    print(f"Floors that hold: {', '.join(extra for extra in statuses if extra not in failed) or 'none'}.")
    print(f"Floors that do not: {', '.join(failed) or 'none'}.")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
