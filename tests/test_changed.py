"""Which tests a change needs, in a small repository of its own."""

import re
import shlex
import shutil
import subprocess
import sys

import pytest

from tests import changed
from tests.changed import DESIGN, READ_BY, SMOKE, find_tests, main
from tests.patience import PATIENCE_SECONDS

FILES = {
    "keras_bert_flow/__init__.py": "_HOMES = {'Public': 'room.far'}\n",
    "keras_bert_flow/room/__init__.py": "",
    "keras_bert_flow/room/near.py": "VALUE = 1\n",
    "keras_bert_flow/room/far.py": "from keras_bert_flow.room import near\n",
    "keras_bert_flow/registry.py": "TABLE = {'near': 'keras_bert_flow.room.near:VALUE'}\n",
    "keras_bert_flow/apart.py": "",
    "tests/__init__.py": "",
    "tests/conftest.py": "",
    "tests/helper.py": "import keras_bert_flow as kbf\n\nPUBLIC = kbf.Public\n",
    "tests/room/conftest.py": "",
    "tests/room/test_near.py": "from keras_bert_flow.room.near import VALUE\n\ndef test_near():\n    assert VALUE\n",
    "tests/room/test_far.py": "def test_far():\n    from keras_bert_flow.room import far\n",
    "tests/test_registry.py": "from keras_bert_flow import registry\n\ndef test_registry():\n    pass\n",
    "tests/away/test_away.py": "from keras_bert_flow import registry\n",
    "tests/test_public.py": "from tests.helper import PUBLIC\n",
    "pyproject.toml": "[tool.pytest.ini_options]\nmarkers = ['slow: takes minutes']\n",
    "README.md": "",
}
SETTINGS = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main")


def git(root, *arguments):
    done = subprocess.run(["git", *SETTINGS, *arguments], cwd=root, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.fixture
def tree(tmp_path):
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


@pytest.fixture
def repository(tree):
    (tree / ".gitignore").write_text(".pytest_cache/\n__pycache__/\n")
    git(tree, "init", "--quiet")
    git(tree, "add", ".")
    git(tree, "commit", "--quiet", "--message", "Begin")
    git(tree, "switch", "--quiet", "--create", "change")
    return tree


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "keras_bert_flow/room/near.py",
            {"tests/room/test_near.py": 1, "tests/room/test_far.py": 2, "tests/away/test_away.py": 2}
            | {"tests/test_registry.py": 2, "tests/test_public.py": 3},
        ),
        ("keras_bert_flow/room/far.py", {"tests/room/test_far.py": 1, "tests/test_public.py": 2}),
        ("tests/helper.py", {"tests/test_public.py": 1}),
        ("tests/room/test_far.py", {"tests/room/test_far.py": 0}),
        ("tests/room/conftest.py", {"tests/room/test_far.py": 1, "tests/room/test_near.py": 1}),
    ],
)
def test_nearest_tests_come_first(tree, name, expected):
    found = find_tests(tree, [name])
    assert [*found.distances.items()] == [*expected.items()]
    assert not found.unmapped


def test_removed_module_has_the_tests_of_those_that_import_it(tree):
    (tree / "keras_bert_flow/room/near.py").unlink()
    (tree / "tests/test_public.py").unlink()
    assert [*find_tests(tree, ["keras_bert_flow/room/near.py"]).distances] == [
        *("tests/room/test_near.py", "tests/room/test_far.py", "tests/away/test_away.py", "tests/test_registry.py")
    ]


def test_removed_module_that_nothing_imports_needs_no_test(tree):
    (tree / "keras_bert_flow/apart.py").unlink()
    assert find_tests(tree, ["keras_bert_flow/apart.py"]) == ({}, [])


def test_imports_are_read_again_where_a_file_changed(tree):
    name = "keras_bert_flow/apart.py"
    assert find_tests(tree, [name]).unmapped == [name]
    (tree / "tests/test_public.py").write_text("import keras_bert_flow.apart")
    assert find_tests(tree, [name]).distances == {"tests/test_public.py": 1}
    (tree / ".pytest_cache/imports.json").write_text("{")
    assert find_tests(tree, [name]).distances == {"tests/test_public.py": 1}
    (tree / "tests/test_public.py").write_text("import keras_bert_flow.apart (")  # it still has a test
    assert find_tests(tree, ["tests/test_public.py"]).distances == {"tests/test_public.py": 0}


def test_what_cannot_be_mapped_has_the_smoke_tests(tree, monkeypatch):
    monkeypatch.setattr(changed, "SMOKE", ("tests/test_registry.py",))
    names = ["pyproject.toml", "tests/conftest.py", "tests/room/test_far.py"]
    found = find_tests(tree, names)
    assert found.unmapped == names[:2]
    assert found.distances == {"tests/room/test_far.py": 0, "tests/test_registry.py": 1}


def test_fixed_tests_are_there():
    names = {*SMOKE, DESIGN, *(test for _, test in READ_BY)}
    assert {name for name in names if not (changed.ROOT / name).is_file()} == set()


def test_change_is_what_is_committed_changed_untracked_or_moved(repository, capsys):
    (repository / "tests/helper.py").write_text("HELP = 1\n")
    git(repository, "commit", "--quiet", "--all", "--message", "Help")
    (repository / "tests/room/test_far.py").write_text("def test_far():\n    pass\n")
    (repository / "tests/test_ünnamed.py").write_text("")
    git(repository, "mv", "keras_bert_flow/registry.py", "keras_bert_flow/table.py")
    assert main(["--list"], repository) == 0
    said = capsys.readouterr().out.splitlines()
    names = "keras_bert_flow/registry.py, keras_bert_flow/table.py, tests/helper.py, tests/room/test_far.py, "
    assert said[0].startswith("5 changed files since ") and said[0].endswith(f": {names}tests/test_ünnamed.py.")
    assert said[1] == "No test imports keras_bert_flow/table.py: the smoke tests are run."
    assert sorted(said[2:]) == [
        *("0  tests/room/test_far.py", "0  tests/test_ünnamed.py", "1  tests/away/test_away.py"),
        *("1  tests/test_public.py", "1  tests/test_registry.py"),
    ]
    assert main(["--list", "--since", "HEAD"], repository) == 0
    assert capsys.readouterr().out.startswith("4 changed files")
    git(repository, "stash", "--quiet", "--include-untracked")
    assert main(["--since", "HEAD"], repository) == 0
    assert "0 changed files" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--since", "nowhere"], "A change is counted since a revision .* Received: nowhere. Name one with --since"),
        (["--since=--independent"], "Received: --independent"),
        (["--seconds", "0"], "`--seconds` must be above 0. Received: 0. Try 45."),
        (["--seconds", "nan"], "`--seconds` must be above 0. Received: nan"),
    ],
)
def test_mistake_is_one_line(repository, capsys, arguments, message):
    assert main(arguments, repository) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert re.search(message, said.err)


def test_folder_that_is_no_repository_is_one_line(tree, capsys, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tree.parent))
    for name in ("GIT_DIR", "GIT_WORK_TREE"):  # of a hook that runs the tests
        monkeypatch.delenv(name, raising=False)
    assert main([], tree) == 2
    assert capsys.readouterr().err == f"A change must be in a git repository. Received: {tree}. Run it in a clone.\n"
    monkeypatch.setenv("PATH", str(tree))  # without git
    assert main([], tree) == 2


TESTS = """
import time
import pytest

def test_short():
    pass

@pytest.mark.slow
def test_slow():
    raise AssertionError

def test_long():
    clock = time.monotonic
    time.monotonic = lambda: clock() + 1000

def test_late():
    raise AssertionError
"""


@pytest.mark.slow
def test_time_bounds_what_is_run_and_the_rest_has_a_command(repository):
    for name in ("changed.py", "revisions.py", "golden/__init__.py", "golden/import_closure.py"):
        (repository / "tests" / name).parent.mkdir(exist_ok=True)
        shutil.copy(changed.ROOT / "tests" / name, repository / "tests" / name)
    far = "from keras_bert_flow.room import far\n\nraise AssertionError('it was imported')\n"
    (repository / "tests/test_later.py").write_text(far)
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "--message", "Test what changed")
    (repository / "tests/room/test_near.py").write_text(TESTS)

    def call(*arguments):
        command = [sys.executable, "-m", *arguments]
        return subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=PATIENCE_SECONDS)

    (repository / "keras_bert_flow/room/near.py").write_text("VALUE = 0\n")  # whose test is named after it
    done = call("tests.changed", "--since", "HEAD")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed, 1 deselected" in done.stdout
    assert "Left out for lack of time, of " in done.stdout and "tests/room/test_near.py" in done.stdout
    listed = (repository / ".pytest_cache/left_out.txt").read_text().splitlines()
    assert listed[0] == "tests/room/test_near.py::test_late" and "tests/test_later.py" in listed
    command = done.stdout.splitlines()[-1]
    assert command == f"KERAS_BACKEND=torch {sys.executable} -m pytest -m 'not slow' @.pytest_cache/left_out.txt"
    assert "it was imported" in call(*shlex.split(command)[3:]).stdout
    (repository / "tests/room/test_near.py").write_text("def test_near():\n    assert False\n")
    done = call("tests.changed", "--since", "HEAD")
    assert done.returncode == 1 and "Left out after a failure, of " in done.stdout
