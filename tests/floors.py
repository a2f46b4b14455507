"""Install the oldest releases that `pyproject.toml` allows, an extra at a time, and run its tests with them.

    python -m tests.floors            # all of `TRIALS`; or some: python -m tests.floors hub beam

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
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
BACKENDS = ("jax", "tensorflow", "torch")
MODELS = ("tests/models/test_backbone.py", "tests/training/test_pretrain.py", "tests/data/test_pretraining.py")
LOGGERS = ("tests/tracking/test_loggers.py",)  # which compare both
KERAS_HUB = ("tests/conversion/test_keras_hub_models.py", "tests/conversion/test_keras_hub_presets.py")
OF_PREFECT = ("rich==13.9.4", "typer==0.15.1")  # what pydocket, which it needs, asks for


class Trial(NamedTuple):
    """How an extra is tested.

    Attributes:
        tests: files.
        besides: packages that they need besides.
        backends: those to install, at their floors as well, and to test one after another.
        raised: what the oldest release of the extra asks for above the floors of the core and of the backends.
        selected: expression of the markers to select. Tests of some extras are all slow.
    """

    tests: tuple[str, ...]
    besides: tuple[str, ...] = ()
    backends: tuple[str, ...] = ("jax",)
    raised: tuple[str, ...] = ()
    selected: str = "not slow"


TRIALS = {
    **{name: Trial(MODELS, backends=(name,)) for name in BACKENDS},
    "beam": Trial(("tests/beam_jobs/test_build_vocabulary.py", "tests/beam_jobs/test_build_records.py")),
    # One of its tests asks for PyTorch, the others for jax.
    "flows": Trial(("tests/flows/test_pipeline.py",), ("apache-beam", "torch"), raised=OF_PREFECT),
    "s3": Trial(("tests/stores/test_fetching.py",), ("moto[s3,server]",)),
    "gcs": Trial(("tests/stores/test_google_storage.py",), ("gcp-storage-emulator", "apache-beam")),
    "hdfs": Trial(("tests/stores/test_hdfs.py",), ("apache-beam",)),
    "hub": Trial(("tests/stores/test_hub.py", "tests/stores/test_hub_upload.py"), backends=BACKENDS),
    # keras-hub 0.32 asks for tensorflow-text 2.20.1, and that for this TensorFlow.
    "keras-hub": Trial(KERAS_HUB, backends=("tensorflow",), raised=("tensorflow==2.20.0", "ml-dtypes==0.5.1")),
    # The reference is `transformers`, which needs PyTorch.
    # Exports by PyTorch need 2.10 and say so (`ExportFormat.oldest`). TensorFlow 2.19 is the first with ml-dtypes 0.5.
    "export": Trial(
        ("tests/conversion/test_exported_formats.py",),
        ("transformers",),
        ("torch", "tensorflow"),
        ("torch==2.10.0", "tensorflow==2.19.0", "ml-dtypes==0.5.1"),
    ),
    "strings": Trial(("tests/conversion/test_exported_strings.py",), ("transformers",), ("tensorflow",)),
    "plots": Trial(("tests/evaluation/test_report.py",)),
    "mlflow": Trial(LOGGERS, ("wandb",), selected=""),
    "wandb": Trial(LOGGERS, ("mlflow-skinny", "alembic", "sqlalchemy"), selected=""),
    "tune": Trial(
        ("tests/tuning/test_study.py", "tests/tuning/test_tune_command.py"),
        ("apache-beam", "prefect"),
        ("torch",),
        OF_PREFECT,
    ),
}
FLOOR = re.compile(r"([A-Za-z0-9_.-]+)(?:\[[^]]*\])?\s*>=\s*([0-9.]+)")


def list_floors(extras: list[str]) -> list[str]:
    """Return the oldest allowed release of each package that the core or an extra names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = [*project["dependencies"], *(need for extra in extras for need in project["optional-dependencies"][extra])]
    return [f"{found[1]}=={found[2]}" for need in needed if (found := FLOOR.match(need))]


def test_extra(extra: str) -> int:
    """Run the tests of an extra at its floors, and return the first status that is not 0."""
    trial = TRIALS[extra]
    extras = sorted({extra, *trial.backends})
    with tempfile.TemporaryDirectory() as folder:
        python = Path(folder) / "bin" / "python"
        constraints = Path(folder) / "floors.txt"
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        floors = dict(floor.split("==") for floor in (*list_floors(extras), *trial.raised))
        constraints.write_text("".join(f"{package}=={release}\n" for package, release in floors.items()))
        pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--constraint", constraints]
        packages = ["--editable", f"{ROOT}[{','.join(extras)}]", "pytest>=8.3", "pytest-timeout>=2.3", *trial.besides]
        if status := subprocess.run([*pip, *packages], check=False).returncode:
            return status
        command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", trial.selected]
        for backend in trial.backends:
            print(f"{extra}, {backend}", flush=True)
            environment = os.environ | {"KERAS_BACKEND": backend, "KBF_TEST_ALONE": "1"}
            if status := subprocess.run([*command, *trial.tests], cwd=ROOT, env=environment, check=False).returncode:
                return status
        return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("extras", nargs="*", default=list(TRIALS), choices=TRIALS)
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
