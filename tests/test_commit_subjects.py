"""Hooks of `.pre-commit-config.yaml`, called by real commits as pre-commit calls them, and the rule for subjects."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.commit_subjects import LIMIT, ROOT, check_subject, main

HOOKS = [
    hook
    for repository in yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    for hook in repository["hooks"]
]
WHOLE = "Name the behaviour " + "x" * (LIMIT - 19)
LONG = WHOLE + "x"


@pytest.fixture
def commit(tmp_path):
    """Return a function that commits what there is in a repository with both hooks, and returns what git said."""
    (tmp_path / "tests").mkdir()
    for name in ("pyproject.toml", "tests/__init__.py", "tests/commit_subjects.py", "tests/revisions.py"):
        shutil.copy(ROOT / name, tmp_path / name)
    # pre-commit runs a hook on the staged files of its types, and refuses a commit whose files it changed.
    scripts = {"pre-commit": [], "commit-msg": []}
    for hook in HOOKS:
        assert hook["language"] == "system"  # with what is installed, and nothing from elsewhere
        (stage,) = hook.get("stages", ["pre-commit"])
        files = '"$1"' if stage == "commit-msg" else "$(git diff --cached --name-only -- '*.py') && git diff --quiet"
        scripts[stage].append(f"{hook['entry']} {files} || exit 1\n")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")} | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        **{f"GIT_{who}_{what}": "a@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
    }

    def git(command):
        return subprocess.run(
            ["git", *shlex.split(command)], cwd=tmp_path, env=environment, capture_output=True, text=True
        )

    git("init --quiet --initial-branch=main")
    git("add .")
    git("commit --quiet -m Begin")
    git("switch --quiet --create change")
    for stage, lines in scripts.items():
        script = tmp_path / ".git" / "hooks" / stage
        script.write_text("#!/bin/sh\n" + "".join(lines))
        script.chmod(0o755)

    def commit(subject, source=None):
        if source is not None:
            (tmp_path / "module.py").write_text(source)
        git("add .")
        return git(f"commit --allow-empty -m {shlex.quote(subject)}")

    commit.folder, commit.git = tmp_path, git
    return commit


def test_hooks_refuse_a_long_subject_and_code_that_ruff_refuses(commit):
    assert commit(WHOLE, "A = 1\n").returncode == 0
    refused = commit(LONG, "A = 2\n")
    assert refused.returncode == 1
    assert f"must have at most 72 characters. Received: 73, {LONG!r}. Move" in refused.stderr
    assert commit("Import what is not used", "import os\n").returncode == 1
    assert commit("Leave the layout to ruff", "A  =  3\n").returncode == 1
    assert (commit.folder / "module.py").read_text() == "A = 3\n"  # as ruff formats it, to be added again
    assert commit("Leave the layout to ruff").returncode == 0
    assert commit.git("log --format=%s main..").stdout.splitlines() == ["Leave the layout to ruff", WHOLE]


def test_commits_since_main_are_checked(commit, capsys):
    commit(WHOLE)
    assert main([], commit.folder) == 0
    commit.git(f"commit --quiet --no-verify --allow-empty -m '{LONG}'")
    assert main([], commit.folder) == 1
    short = commit.git("log -1 --format=%h").stdout.strip()
    assert capsys.readouterr().err.startswith(
        f"{short}: A commit subject must have at most 72 characters. Received: 73"
    )
    assert main(["--since", "HEAD"], commit.folder) == 0
    assert main(["--since", "nowhere"], commit.folder) == 2
    assert main([str(commit.folder / "none")], commit.folder) == 2


@pytest.mark.parametrize(
    ("message", "is_right"),
    [
        (f"# a comment\n\n{WHOLE}\n\n{'body ' * 40}\n", True),
        (f"{'é' * LIMIT}\n", True),
        (f"{'é' * LIMIT}é\n", False),
        (f"{WHOLE}\nand a second line of the subject\n", False),  # git joins them
        (f"fixup! squash! {WHOLE}\n", True),
        (f"fixup! {LONG}\n", False),
        ("", True),  # git refuses it
    ],
    ids=["body", "characters", "a character more", "two lines", "fixup", "long fixup", "empty"],
)
def test_subject_is_what_git_reads(tmp_path, message, is_right):
    (tmp_path / "message").write_text(message)
    assert main([str(tmp_path / "message")]) == int(not is_right)


def test_this_rule_has_a_limit():
    assert check_subject("x" * LIMIT) is None
    assert check_subject("x" * (LIMIT + 1)).count("\n") == 0
