"""Modules of a user's that have the names of ours, of the standard library's and of packages that we import.

Whoever imports one of them ends at once, saying its name.
"""

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

PACKAGES = ("flows", "beam_jobs", "keras_bert_flow", "tests")
MODULES = (
    *("json", "random", "string", "queue", "statistics", "csv", "logging", "uuid", "secrets", "tempfile"),
    *("text", "config", "data", "records", "tasks", "models", "keys", "utils"),
    *("numpy", "keras", "jax", "tensorflow", "torch", "grain", "prefect", "apache_beam", "yaml", "typer", "pydantic"),
)


def write_strangers(folder: Path, without: tuple[str, ...] = ()) -> Path:
    for name in {*PACKAGES, *MODULES} - {*without}:
        path = folder / name / "__init__.py" if name in PACKAGES else folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"raise SystemExit('a stranger was imported: {name}')\n")
    return folder


@cache
def folder_for_commands() -> Path:
    """Return a folder in which `python -m keras_bert_flow` finds its own package, and strangers otherwise."""
    folder = Path(tempfile.mkdtemp(prefix="kbf-strangers-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return write_strangers(folder, without=("keras_bert_flow",))
