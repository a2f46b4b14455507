import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE_SECONDS


def test_interrupts_reach_tests_that_a_script_runs_in_the_background():
    """And their children, which inherit what the test process does with SIGINT."""
    child = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    code = f"import subprocess, sys, tests.conftest; subprocess.run([sys.executable, '-c', {child!r}], check=True)"
    command = ("sh", "-c", 'trap "" INT; exec "$0" -c "$1"', sys.executable, code)
    root = Path(__file__).parents[1]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True)
    assert done.stdout == "True\n"


MARKED = """
import pytest
@pytest.mark.first_form
@pytest.mark.parametrize("form", [1, 2])
def test_of_two_forms(form): pass
@pytest.mark.first_form_compiled
@pytest.mark.parametrize("form", [1, 2])
def test_of_two_compilations(form): pass
@pytest.mark.slow_compiled
def test_of_what_is_compiled(): pass
@pytest.mark.slow_on_tensorflow
def test_that_traces_for_long(): pass
@pytest.mark.any_backend
def test_that_needs_no_backend(): pass
"""
FORM, COMPILED, TRACED, ANY = "two_forms[1]", "what_is_compiled", "traces_for_long", "needs_no_backend"
ONCE, TWICE = "two_compilations[1]", "two_compilations[2]"


@pytest.mark.parametrize(
    ("backend", "ran"),
    [
        pytest.param("torch", (FORM, ONCE, TWICE, COMPILED, TRACED, ANY), marks=pytest.mark.slow),
        ("jax", (FORM, ONCE, TRACED)),
        pytest.param("tensorflow", (FORM, ONCE), marks=pytest.mark.slow),
    ],
)
def test_markers_leave_out_what_is_slow_on_a_backend(tmp_path, backend, ran):
    (tmp_path / "test_marked.py").write_text(MARKED)
    root = Path(__file__).parents[1]
    command = (sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "not slow", "-p", "tests.conftest")
    done = subprocess.run(
        (*command, "-c", root / "pyproject.toml", "--rootdir", tmp_path, tmp_path),
        cwd=root,
        env=os.environ | {"KERAS_BACKEND": backend, "KBF_TEST_ALONE": ""},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=True,
    )
    found = [line.partition("::")[2] for line in done.stdout.splitlines() if "::" in line]
    assert [name for name in (FORM, ONCE, TWICE, COMPILED, TRACED, ANY) if any(name in line for line in found)] == [
        *ran
    ]
    assert len(found) == len(ran)
