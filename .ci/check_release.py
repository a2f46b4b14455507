"""Check that a tag, the version, CITATION.cff and CHANGELOG.md agree: `python .ci/check_release.py v1.2.3`."""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
HEADING = re.compile(r"^## \[([^\]]+)\](?: - (\d{4}-\d\d-\d\d))?$", re.MULTILINE)
UNRELEASED = "Unreleased"


def read_version(root: Path = ROOT) -> str:
    """Return the version in `pyproject.toml`, the one place where it is set; CITATION.cff repeats it for GitHub."""
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]


def find_faults(root: Path = ROOT, tag: str | None = None) -> list[str]:
    """Return what must be mended before a release; without a tag, before a change.

    Args:
        root: of a checkout.
        tag: `v` and the version that is released.
    """
    version, faults = read_version(root), []
    cited = re.findall(r"^version: (.+)$", (root / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    if cited != [version]:
        faults.append(f"CITATION.cff must name the version of pyproject.toml. Received: {cited}, not {version}.")
    headings = HEADING.findall((root / "CHANGELOG.md").read_text(encoding="utf-8"))
    if headings[:1] != [(UNRELEASED, "")]:
        faults.append(f"CHANGELOG.md must begin with `## [{UNRELEASED}]`. Received: {headings[:1]}.")
    released = [heading for heading in headings if heading[0] != UNRELEASED]
    if undated := [name for name, date in released if not date]:
        faults.append(f"A heading in CHANGELOG.md must be `## [1.2.3] - 2026-01-31`. Received: no date of {undated}.")
    if tag is not None:
        if tag != f"v{version}":
            faults.append(f"The tag must be v and the version of pyproject.toml. Received: {tag}, not v{version}.")
        if [name for name, _ in released][:1] != [version]:
            faults.append(f"CHANGELOG.md must have `## [{version}] - DATE` below `## [{UNRELEASED}]`.")
    return faults


if __name__ == "__main__":
    sys.exit("\n".join(find_faults(tag=sys.argv[1])))
