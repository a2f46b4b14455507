"""Which commits of a history made the results of users stale."""

import json
import subprocess

from tests.golden.history import MODULES, RESULTS, count_stale


def test_commits_are_counted_by_what_they_changed(tmp_path):
    def commit(revision: int | None, result: str = "0a", code: str = "1") -> str:
        if revision is not None:
            stages = {"records": {"revision": revision, "results": {"any": {"file": result}}}}
            for path, values in ((RESULTS, {"stages": stages}), (MODULES, {"a": code})):
                (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / path).write_text(json.dumps(values))
        for arguments in (["add", "-A"], ["commit", "-q", "--allow-empty", "-m", "."]):
            subprocess.run(["git", "-C", tmp_path, *git, *arguments], check=True)
        done = subprocess.run(["git", "-C", tmp_path, "log", "-1", "--format=%h"], capture_output=True, text=True)
        return done.stdout.strip()

    git = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    commit(None)
    commit(1)
    code = commit(1, code="2")
    due = commit(2, result="0b", code="2")
    needless = commit(3, result="0b", code="2")
    assert count_stale(tmp_path, 10) == {"code": [code], "raised": [needless, due], "needless": [needless]}
    assert count_stale(tmp_path, 1) == {"code": [], "raised": [needless], "needless": [needless]}
