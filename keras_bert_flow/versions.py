"""Name the versions of this package and of what it computes with, without importing any of it."""

import platform
from importlib import metadata

# what is shown → distributions that bring it
SHOWN = {
    "keras": ("keras",),
    "jax": ("jax",),
    "tensorflow": ("tensorflow", "tensorflow-cpu", "tf-nightly"),
    "torch": ("torch",),
}


def describe_versions() -> str:
    """Return a line for this package, for Python, and for Keras and each of its backends."""
    lines = {"keras-bert-flow": find_version("keras-bert-flow") or "source", "python": platform.python_version()}
    for name, distributions in SHOWN.items():
        found = next(filter(None, map(find_version, distributions)), None)
        lines[name] = found or "not installed"
    return "\n".join(f"{name} {version}" for name, version in lines.items())


def find_version(distribution: str) -> str | None:
    """Return the version of an installed distribution, None where it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
