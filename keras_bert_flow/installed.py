"""What is installed: versions, backends, the extras that are missing, and this project's own packages."""

import importlib.util
import json
import logging
import os
import platform
import re
import site
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

# displayed name → distributions that provide it
SHOWN = {
    "keras": ("keras",),
    "jax": ("jax",),
    "tensorflow": ("tensorflow", "tensorflow-cpu", "tf-nightly"),
    "torch": ("torch",),
}


def describe_versions() -> str:
    """Return one line each for this package, Python, Keras and each of its backends."""
    lines = {"keras-bert-flow": find_version("keras-bert-flow") or "source", "python": platform.python_version()}
    for name, distributions in SHOWN.items():
        found = next(filter(None, map(find_version, distributions)), None)
        lines[name] = found or "not installed"
    return "\n".join(f"{name} {version}" for name, version in lines.items())


def find_version(distribution: str) -> str | None:
    """Return the version of an installed distribution; None if it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


# Check that optional packages are installed, and name the extras that install them.

_logger = logging.getLogger(__name__)

BACKENDS = ("jax", "tensorflow", "torch")
KERAS_BACKEND = "KERAS_BACKEND"
KERAS_DEFAULT = "tensorflow"
# package → extra
EXTRAS = {
    "apache_beam": "beam",
    "prefect": "flows",
    "jax": "jax",
    "tensorflow": "tensorflow",
    "torch": "torch",
    "matplotlib": "plots",
    "pyarrow": "beam",
    "zstandard": "beam",
    "s3fs": "s3",
    "gcsfs": "gcs",
    "requests": "hdfs",
    "huggingface_hub": "hub",
    "keras_hub": "keras-hub",
    "onnx": "export",
    "onnxruntime": "export",
    "onnxscript": "export",
    "tf2onnx": "export",
    "ai_edge_litert": "export",
    "tensorflow_text": "strings",
    "mlflow": "mlflow",
    "wandb": "wandb",
    "optuna": "tune",
    "fastapi": "serve",
    "uvicorn": "serve",
    "prometheus_client": "serve",
}


def check_installed(packages: Iterable[str]) -> None:
    """Check that packages are installed, without importing them.

    Raises:
        ValueError: some are missing; the message names all of them, and the command that installs them.
    """
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    if missing:
        extras = ",".join(sorted({EXTRAS[package] for package in missing}))
        raise ValueError(
            f"Packages that this needs must be installed. Received: {', '.join(missing)}, not installed. "
            f"pip install 'keras-bert-flow[{extras}]'"
        )


def check_release(package: str, oldest: str) -> None:
    """Check the release of an installed package, such as 2.10.1, by its first two numbers.

    Raises:
        ValueError: it is older.
    """
    found = find_version(package)
    release, least = ([*map(int, re.findall(r"\d+", version)[:2])] for version in (found or oldest, oldest))
    if release < least:
        raise ValueError(
            f"{package} must be {oldest} or newer for this. Received: {found}. pip install --upgrade {package}"
        )


def check_backend(name: str) -> None:
    """Check that a Keras backend is known and installed.

    Raises:
        ValueError: it is not; the message names an installed one, if any.
    """
    if name not in BACKENDS:
        raise ValueError(f"The backend must be one of {', '.join(BACKENDS)}. Received: {name}.")
    if importlib.util.find_spec(name) is None:
        others = [other for other in BACKENDS if importlib.util.find_spec(other)]
        instead = f", or choose --backend {others[0]}, which is installed" if others else ""
        raise ValueError(
            f"The backend must be installed. Received: {name}, which is not. "
            f"pip install 'keras-bert-flow[{EXTRAS[name]}]'{instead}."
        )


def find_backend() -> str | None:
    """Return the first backend that is installed; None if none is."""
    return next((name for name in BACKENDS if importlib.util.find_spec(name)), None)


def take_installed_backend() -> None:
    """Set $KERAS_BACKEND to an installed backend where Keras, about to be imported, would look for another.

    Raises:
        ImportError: none is installed.
    """
    if os.environ.get(KERAS_BACKEND) or importlib.util.find_spec(_read_keras_backend()) is not None:
        return
    chosen = find_backend()
    if chosen is None:
        raise ImportError(
            f"Keras needs a backend. Received: none of {', '.join(BACKENDS)} is installed. "
            "pip install 'keras-bert-flow[jax]', or [torch] or [tensorflow]."
        )
    os.environ[KERAS_BACKEND] = chosen
    _logger.warning("Keras runs on %s, which is installed. Set %s to choose another.", chosen, KERAS_BACKEND)


def _read_keras_backend() -> str:
    """Return the backend that Keras takes without $KERAS_BACKEND: that of its configuration file, or its default."""
    home = os.environ.get("KERAS_HOME")
    path = Path(home) if home else Path.home() / ".keras"
    try:
        content = json.loads((path / "keras.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return KERAS_DEFAULT
    named = content.get("backend") if isinstance(content, dict) else None
    return named if isinstance(named, str) and named.isidentifier() else KERAS_DEFAULT


# Import this project's packages rather than a user's of the same name, in this process and in its children: a `flows/`
# in the working directory, which `python -m` and `python -c` put first on the module search path, would shadow ours.

ROOT = Path(__file__).parents[1]
PACKAGES = ("beam_jobs", "flows")
PROJECT = "keras-bert-flow"  # named in the docstring of each package's `__init__.py`


def child_environment() -> dict[str, str]:
    """Return environment variables that make a Python child, and its children, import what this process imports.

    The working directory is left out of the search path, including empty entries of `PYTHONPATH`, which denote it. So
    is the project where it is in site-packages, which `PYTHONPATH` would put before everything else.
    """
    entries = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    places = (*site.getsitepackages(), site.getusersitepackages())
    is_installed = any(os.path.isdir(place) and os.path.samefile(place, ROOT) for place in places)
    if not is_installed and str(ROOT) not in entries[:1]:
        entries.insert(0, str(ROOT))
    return {"PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join(entries)}


def check_packages() -> None:
    """Check that `beam_jobs` and `flows` are this project's own, since the names are common.

    Raises:
        ValueError: another package of that name comes first on the search path, or has overwritten ours.
    """
    for name in PACKAGES:
        own, found = ROOT / name / "__init__.py", importlib.util.find_spec(name)
        origin = found.origin if found else None
        is_there = origin is not None and os.path.isfile(origin) and own.is_file() and os.path.samefile(origin, own)
        if not is_there or PROJECT not in own.read_text(encoding="utf-8", errors="replace"):
            places = [found.origin, *(found.submodule_search_locations or ())] if found else []
            place = next(filter(None, places), "none")
            raise ValueError(
                f"The package `{name}` must be that of {PROJECT}. Received: {place}. Take the other off PYTHONPATH, "
                f"or install {PROJECT} in a virtual environment of its own."
            )
