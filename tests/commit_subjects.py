"""Refuse commit subjects that are longer than 72 characters.

python -m tests.commit_subjects .git/COMMIT_EDITMSG    # as git's commit-msg hook, from `.pre-commit-config.yaml`
python -m tests.commit_subjects [--since REV]          # each commit since the merge base with main
"""

import argparse
import subprocess
import sys
from pathlib import Path

from tests.revisions import find_base, list_subjects

ROOT = Path(__file__).parents[1]
LIMIT = 72  # what `git log` shows in a terminal of 80 columns
FOLDED = ("fixup! ", "squash! ", "amend! ")  # prefixes that `git rebase --autosquash` takes off


def check_subject(subject: str) -> str | None:
    """Return what is wrong with a subject, in one line; None if nothing is.

    >>> check_subject("Divide masked-LM loss by real predictions")
    """
    plain = subject
    while prefix := next((prefix for prefix in FOLDED if plain.startswith(prefix)), None):
        plain = plain.removeprefix(prefix)
    if len(plain) <= LIMIT:
        return None
    return (
        f"A commit subject must have at most {LIMIT} characters. Received: {len(plain)}, {plain!r}. "
        "Move the details to the body, below an empty line."
    )


def read_subject(path: Path) -> str:
    """Return the subject in a file of a commit message as git will read it: the first paragraph in one line."""
    message = subprocess.run(
        ["git", "stripspace", "--strip-comments"], input=path.read_bytes(), capture_output=True, check=True
    ).stdout.decode(errors="replace")
    return " ".join(message.partition("\n\n")[0].split("\n")).strip()


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("message", nargs="?", type=Path, help="a file with a commit message")
    parser.add_argument("--since", metavar="REV", help="check the commits since the merge base with it; default: main")
    given = parser.parse_args(arguments)
    try:
        if given.message:
            faults = [check_subject(read_subject(given.message))]
        else:
            subjects = list_subjects(root, find_base(root, given.since))
            found = ((short, check_subject(subject)) for short, subject in subjects)
            faults = [f"{short}: {fault}" for short, fault in found if fault]
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    for fault in filter(None, faults):
        print(fault, file=sys.stderr)
    return int(any(faults))


if __name__ == "__main__":
    sys.exit(main())
