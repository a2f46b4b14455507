import subprocess
import sys
from pathlib import Path

from tests.patience import PATIENCE_SECONDS


def test_interrupts_reach_tests_that_a_script_runs_in_the_background():
    """And their children, which inherit what the test process does with SIGINT."""
    child = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    code = f"import subprocess, sys, tests.conftest; subprocess.run([sys.executable, '-c', {child!r}], check=True)"
    command = ("sh", "-c", 'trap "" INT; exec "$0" -c "$1"', sys.executable, code)
    root = Path(__file__).parents[1]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True)
    assert done.stdout == "True\n"
