"""What git knows of a change: the files and the commits since it left the main branch."""

import subprocess
from pathlib import Path

MAIN = ("main", "origin/main")  # a clone of another branch has the second only


def find_base(root: Path, since: str | None = None) -> str:
    """Return the commit at which the change began: the merge base of HEAD and a revision.

    Args:
        root: a folder of a git repository.
        since: a revision. Default: the first of `MAIN` that there is.
    Raises:
        ValueError: `root` is in no git repository, or there is no such revision.
    """
    if _ask(root, "rev-parse", "--git-dir") is None:
        raise ValueError(f"A change must be in a git repository. Received: {root}. Run it in a clone.")
    names = MAIN if since is None else (since,)
    for name in names:
        if not name.startswith("-") and (base := _ask(root, "merge-base", name, "HEAD")):
            return base.strip()
    raise ValueError(
        f"A change is counted since a revision with which HEAD shares history. Received: {' and '.join(names)}. "
        "Name one with --since."
    )


def list_changed_files(root: Path, base: str) -> list[str]:
    """Return the files changed since a commit, relative to `root`: committed or not, untracked, or removed."""
    changed = _ask(root, "diff", "--name-only", "--no-renames", "--relative", "-z", base, "--") or ""
    untracked = _ask(root, "ls-files", "--others", "--exclude-standard", "-z") or ""
    return sorted({*changed.split("\0"), *untracked.split("\0")} - {""})


def list_subjects(root: Path, base: str) -> list[tuple[str, str]]:
    """Return (short hash, subject) of each commit since a commit, merges aside, the newest first."""
    lines = (_ask(root, "log", "--no-merges", "--format=%h %s", f"{base}..HEAD") or "").splitlines()
    return [(short, subject) for short, _, subject in (line.partition(" ") for line in lines)]


def _ask(root: Path, *arguments: str) -> str | None:
    """Return what git prints; None if it refuses, or is not installed."""
    try:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, errors="surrogateescape")
    except FileNotFoundError:
        return None
    return None if done.returncode else done.stdout
