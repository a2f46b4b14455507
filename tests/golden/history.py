"""Count the commits that made results of users stale: `python -m tests.golden.history [--last 150]`.

A commit makes the results of a stage stale if it raises its revision. It should do so only where it changes a golden
result; that the code of a stage changes, for which every result was made again before stages had revisions, is no
reason. Commits before the golden files are counted as none of these.
"""

import argparse
import json
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
MODULES, RESULTS = "tests/golden/modules.json", "tests/golden/stages.json"


def read_at(root: Path, revision: str, path: str) -> dict:
    """Read a JSON file as it is in a commit; {} if the commit has no such file."""
    done = subprocess.run(["git", "-C", root, "show", f"{revision}:{path}"], capture_output=True, check=False)
    return json.loads(done.stdout) if done.returncode == 0 else {}


def count_stale(root: Path, last: int) -> dict[str, list[str]]:
    """Return what was found → the commits it was found in, of the last ones.

    Returns:
        code: the code of a stage changed.
        raised: the revision of a stage was raised.
        needless: one was raised whose golden results are as they were.
    """
    listed = subprocess.run(
        ["git", "-C", root, "log", f"-{last}", "--first-parent", "--format=%h %p"],
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, list[str]] = {"code": [], "raised": [], "needless": []}
    for commit, *parents in map(str.split, listed.stdout.splitlines()):
        if not parents:
            continue
        before, after = (read_at(root, name, RESULTS).get("stages", {}) for name in (parents[0], commit))
        earlier, later = (read_at(root, name, MODULES) for name in (parents[0], commit))
        raised = [name for name in before if name in after and after[name]["revision"] > before[name]["revision"]]
        if earlier and earlier != later:
            found["code"].append(commit)
        if raised:
            found["raised"].append(commit)
        if any(after[name]["results"] == before[name]["results"] for name in raised):
            found["needless"].append(commit)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--last", type=int, default=150, help="number of commits (150)")
    last = parser.parse_args().last
    found = count_stale(ROOT, last)
    print(f"Of the last {last} commits:")
    for words, name in (
        ("changed the code of a stage, as it was recorded", "code"),
        ("raised a revision", "raised"),
        ("raised one whose results are as they were", "needless"),
    ):
        print(f"{len(found[name]):4} {words} {' '.join(found[name])}".rstrip())


if __name__ == "__main__":
    main()
