"""Import this project's packages rather than a user's of the same name, here and in child processes.

`python -m` and `python -c` put the working directory first on the module search path, so a user's `flows/` or
`random.py` would shadow ours or the standard library's.
"""

import importlib.util
import os
import site
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("beam_jobs", "flows")
PROJECT = "keras-bert-flow"  # named in the docstring of each package's `__init__.py`


def child_environment() -> dict[str, str]:
    """Return environment variables that make a Python child, and its children, import what this process imports.

    The working directory is left out of the search path, including empty entries of `PYTHONPATH`, which denote it.
    """
    entries = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if not _is_installed() and str(ROOT) not in entries[:1]:
        entries.insert(0, str(ROOT))
    return {"PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join(entries)}


def leave_working_directory() -> None:
    """Remove the working directory that `python -m` put on the search path, unless the project is there."""
    try:
        here = os.getcwd()
    except FileNotFoundError:  # it was removed, which the commands refuse
        return
    if not sys.flags.safe_path and sys.path[:1] == [here] and not os.path.samefile(here, ROOT):
        del sys.path[0]


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


def _is_installed() -> bool:
    """Return whether the project is in site-packages, which `PYTHONPATH` would put before everything else."""
    places = (*site.getsitepackages(), site.getusersitepackages())
    return any(os.path.isdir(place) and os.path.samefile(place, ROOT) for place in places)
