"""Report the versions of this package, Python, Keras and the backends, without importing any of them."""

import platform
from importlib import metadata

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
