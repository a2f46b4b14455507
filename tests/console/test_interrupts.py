"""Ctrl-C and SIGTERM at any moment: one line, a status of its own, nothing left behind."""

import os
import pty
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import yaml

from keras_bert_flow.console.interrupts import CHECKPOINTED, HUNG_UP, INTERRUPTED, TERMINATED
from tests.oracles.tiny_records import make_tiny_config, write_tiny_records
from tests.patience import PATIENCE_SECONDS, wait_until
from tests.terminals import read_terminal

ROOT = Path(__file__).parents[2]
INTERRUPTED_LINE = "kbf: interrupted; run the same command again to complete it."
TERMINATED_LINE = "kbf: terminated by SIGTERM; run the same command again to complete it."
HUNG_UP_LINE = "kbf: its terminal was closed (SIGHUP); run the same command again to complete it."
STOPPED_LINE = "kbf: Stopped between two steps of its work; run the same command again to go on."
TRAINING = "Stopping at the next step"
# What Beam's workers and TensorFlow write to standard error in every run, TF_CPP_MIN_LOG_LEVEL=3 or not.
REMARKS = (
    "INFO:",
    "WARNING:root:apitools",
    "WARNING: All log messages before absl",
    "I0000 ",
)  # Beam's workers announce themselves on standard error
NO_GPU = "failed call to cuInit"  # TensorFlow, of a machine without a GPU
CACHES = {"torchinductor_root", f"torchinductor_{os.environ.get('USER', 'root')}"}  # torch keeps these for later
TWO_WORKERS = ("--runner=FnApiRunner", "--direct_running_mode=multi_processing", "--direct_num_workers=2")


def start(command, folder: Path, **variables: str) -> subprocess.Popen:
    """Start a command in a process group of its own, as a terminal does, its temporary files in `folder / "tmp"`."""
    (folder / "tmp").mkdir(exist_ok=True)
    return subprocess.Popen(
        [sys.executable, *map(str, command)],
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(folder / "tmp"), "PREFECT_HOME": str(folder / "prefect")} | variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def kbf(*arguments) -> tuple:
    return ("-m", "keras_bert_flow", *arguments)


def finish(process: subprocess.Popen) -> tuple[int, list[str], list[str]]:
    """Return status, lines of standard output and lines of standard error but for remarks of libraries."""
    printed, complained = process.communicate(timeout=PATIENCE_SECONDS)
    lines = [line for line in complained.splitlines() if not line.startswith(REMARKS) and NO_GPU not in line]
    return process.returncode, printed.splitlines(), lines


def processor_seconds(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.Error:
        return float("inf")
    return times.user + times.system


def is_over(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE  # nobody reaps orphans in some containers
    except psutil.NoSuchProcess:
        return True


def send_at(command, folder: Path, seconds: float, number: int = signal.SIGINT, **variables: str):
    """Send a signal to all processes of a command once the first has had so many seconds of processor time."""
    process = start(command, folder, **variables)
    watched = psutil.Process(process.pid)
    wait_until(lambda: process.poll() is not None or processor_seconds(watched) >= seconds)
    if process.poll() is None:
        os.killpg(process.pid, number)
    return finish(process)


def assert_left(done, folder: Path, kept: set[str], status: int = INTERRUPTED, line: str = INTERRUPTED_LINE) -> None:
    assert done[0] == status, done
    assert done[2] == [line]
    assert set(os.listdir(folder / "tmp")) <= CACHES
    assert {path.name for path in folder.iterdir()} <= kept | {"tmp", "prefect"}


@pytest.fixture(scope="module")
def interpreter_seconds() -> float:
    """Processor time after which a command surely handles signals: that of Python itself, and some."""
    return 3 * measure_seconds("-c", "import keras_bert_flow.console.interrupts")


def measure_seconds(*arguments: str) -> float:
    """Return the processor time of a run of Python."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.fixture
def pretraining(tmp_path: Path):
    (tmp_path / "tmp").mkdir()
    records = write_tiny_records(tmp_path / "tmp" / "records")
    config = tmp_path / "tmp" / "tiny.yaml"
    values = make_tiny_config(total_steps=100_000, log_every_steps=1000).model_dump(mode="json", exclude_none=True)
    config.write_text(yaml.safe_dump(values))

    def make(number: int) -> tuple[tuple, Path]:
        folder = tmp_path / str(number)
        folder.mkdir()
        return kbf("pretrain", "--config", config, "--records", records, "--output", folder / "out"), folder

    return make


@pytest.fixture
def vocabulary(tmp_path: Path):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n\n".join(f"The cat number {number} goes home.\nIt sleeps." for number in range(3000)))

    def make(number: int) -> tuple[tuple, Path]:
        folder = tmp_path / str(number)
        folder.mkdir()
        return kbf("vocab", "--input", corpus, "--size", "100", "--output", folder / "out"), folder

    return make


def test_interrupt_during_start_up(pretraining, interpreter_seconds):
    for place, seconds in enumerate((interpreter_seconds, 0.6, 1.6)):
        command, folder = pretraining(place)
        assert_left(send_at(command, folder, seconds), folder, set())


@pytest.mark.slow
def test_sigterm_during_start_up(pretraining, vocabulary, interpreter_seconds):
    command, folder = vocabulary(0)
    done = send_at(command, folder, interpreter_seconds, signal.SIGTERM)
    assert_left(done, folder, set(), TERMINATED, TERMINATED_LINE)
    command, folder = pretraining(1)
    loaded = 1.1 * measure_seconds("-m", "keras_bert_flow", "pretrain", "--help")  # the command itself has begun
    done = send_at(command, folder, loaded, signal.SIGTERM)
    assert_left(done, folder, set(), CHECKPOINTED, STOPPED_LINE)  # this command can go on, and a scheduler is told so


def test_hangup_of_a_job_leaves_nothing_behind(vocabulary):
    command, folder = vocabulary(0)
    process = start(command, folder)
    wait_until(lambda: process.poll() is not None or (folder / ".out.work").exists())
    os.killpg(process.pid, signal.SIGHUP)
    assert_left(finish(process), folder, set(), HUNG_UP, HUNG_UP_LINE)


IN_A_TERMINAL = """
import os, pty, sys
from pathlib import Path
child, terminal = pty.fork()  # the child leads a session with this terminal
if child == 0:
    os.execv(sys.executable, [sys.executable, *sys.argv[3:]])
Path(sys.argv[1]).write_text(str(child))
while not Path(sys.argv[2]).is_file():
    os.read(terminal, 1 << 16)
os._exit(0)  # which closes the terminal
"""


@pytest.mark.slow
def test_closing_the_terminal_saves_a_checkpoint(pretraining, tmp_path):
    command, folder = pretraining(0)
    command = (*command, "--set", "pretraining.log_every_steps=5")
    log = folder / ".out.work" / "log.jsonl"
    window = subprocess.Popen(
        [sys.executable, "-c", IN_A_TERMINAL, tmp_path / "pid", log, *map(str, command)], cwd=ROOT
    )
    assert window.wait(PATIENCE_SECONDS) == 0
    wait_until(lambda: is_over(psutil.Process(int((tmp_path / "pid").read_text()))))
    assert list(log.parent.glob("**/step-*"))


def sweep(make, start: float, step: float, kept: set[str], **variables: str) -> int:
    """Send SIGINT at moments `step` apart until the command takes it as a request to save, or ends; return how many."""
    for place in range(1000):
        command, folder = make(place)
        done = send_at(command, folder, start + place * step, **variables)
        if done[0] in (0, CHECKPOINTED):
            assert done[0] == 0 or any(TRAINING in line for line in done[2])
            return place
        assert_left(done, folder, kept)
    raise AssertionError("the command never came to its end")


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["jax", "tensorflow", "torch"])
def test_interrupt_at_every_moment_until_training_takes_over(pretraining, interpreter_seconds, backend):
    assert sweep(pretraining, interpreter_seconds, 0.1, {".out.work"}, KERAS_BACKEND=backend) > 10


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), TWO_WORKERS], ids=["one_process", "two_workers"])
def test_interrupt_at_every_moment_of_a_beam_job(vocabulary, interpreter_seconds, options):
    def make(number: int):
        command, folder = vocabulary(number)
        return (*command, *options), folder

    assert sweep(make, interpreter_seconds, 0.05, set()) > 5


@pytest.mark.slow
def test_interrupt_of_a_beam_job_with_workers(vocabulary):
    """Workers are of the same process group, to all of which a terminal sends SIGINT."""
    command, folder = vocabulary(0)
    process = start((*command, *TWO_WORKERS), folder)
    watched = psutil.Process(process.pid)

    def workers() -> list[psutil.Process]:
        return [child for child in watched.children(recursive=True) if processor_seconds(child) > 0.3]

    wait_until(lambda: process.poll() is not None or workers())
    found = workers()
    assert found
    os.killpg(process.pid, signal.SIGINT)
    assert_left(finish(process), folder, set())
    wait_until(lambda: all(map(is_over, found)))


def test_interrupt_of_a_run_stops_its_server(tmp_path):
    process = start(kbf("run", "configs/quickstart.yaml", "--set", f"runs={tmp_path / 'runs'}"), tmp_path)
    watched = psutil.Process(process.pid)
    wait_until(lambda: process.poll() is not None or watched.children(recursive=True))
    servers = watched.children(recursive=True)
    os.killpg(process.pid, signal.SIGINT)
    time.sleep(0.05)
    if process.poll() is None:  # twice in quick succession
        os.killpg(process.pid, signal.SIGINT)
    assert_left(finish(process), tmp_path, {"runs"})
    wait_until(lambda: all(map(is_over, servers)))


def run_code(folder: Path, code: str, **variables: str):
    prelude = (
        "import os, signal, subprocess, sys, time\nfrom pathlib import Path\n"
        "from keras_bert_flow.results.artifacts import publishing, removed_on_leaving, write_atomically\n"
        "from keras_bert_flow.console.interrupts import handle_signals, on_leaving\n"
        "handle_signals()\ndef interrupt(*_): os.kill(os.getpid(), signal.SIGINT)\n"
        f"out = Path({str(folder / 'out')!r})\n"
    )
    return finish(start(("-c", prelude + code), folder, **variables))


def test_interrupt_ends_code_that_swallows_exceptions(tmp_path):
    done = run_code(
        tmp_path, "try:\n    interrupt()\n    time.sleep(1)\nexcept BaseException:\n    pass\nprint('went on')"
    )
    assert_left(done, tmp_path, set())
    assert done[1] == []


@pytest.mark.parametrize(
    "resumable, before, kept",
    [
        (False, "(work / 'a').write_text('a')", set()),
        (True, "(work / 'a').write_text('a')", {".out.work"}),
        (True, "pass", set()),
    ],
)
def test_interrupt_while_a_result_is_built(tmp_path, resumable, before, kept):
    done = run_code(tmp_path, f"with publishing(out, {resumable}) as work:\n    {before}\n    interrupt()")
    assert_left(done, tmp_path, kept)
    assert {path.name for path in tmp_path.iterdir()} == kept | {"tmp"}


@pytest.mark.parametrize("when", ["before", "after"])
def test_interrupt_around_the_rename_that_publishes(tmp_path, when):
    order = "interrupt(); rename(*names)" if when == "before" else "rename(*names); interrupt()"
    code = f"rename = os.rename\ndef publish(*names): {order}\nos.rename = publish\n"
    done = run_code(tmp_path, code + "with publishing(out) as work:\n    (work / 'a').write_text('whole')\n")
    assert_left(done, tmp_path, {"out"} if when == "after" else set())
    assert when == "before" or (tmp_path / "out" / "a").read_text() == "whole"


def test_interrupt_while_a_file_is_replaced(tmp_path):
    (tmp_path / "out").write_bytes(b"old")
    done = run_code(tmp_path, "os.replace = interrupt\nwrite_atomically(out, b'new')")
    assert_left(done, tmp_path, {"out"})
    assert (tmp_path / "out").read_bytes() == b"old"


def test_second_interrupt_hurries_and_prints_nothing(tmp_path):
    code = (
        "def wait(hurry):\n    if not hurry:\n        interrupt()\n        time.sleep(1000)\n"
        "Path(os.environ['TMPDIR'], 'file').touch()\n"
        "with removed_on_leaving(os.environ['TMPDIR'] + '/file'), on_leaving(wait):\n    interrupt()\n"
    )
    assert_left(run_code(tmp_path, code), tmp_path, set())


def test_interrupt_ends_child_processes(tmp_path):
    code = "child = subprocess.Popen(['sh', '-c', 'sleep 1000; true'], stdout=2)\nprint(child.pid, flush=True)\n"
    done = run_code(tmp_path, code + "time.sleep(0.2)\ninterrupt()")
    assert_left(done, tmp_path, set())
    wait_until(lambda: not psutil.pid_exists(int(done[1][0])) or is_over(psutil.Process(int(done[1][0]))))


def test_interrupt_that_was_ignored_from_the_start_stays_ignored(tmp_path):
    """As in a job that a script put in the background."""
    code = "signal.signal(signal.SIGINT, signal.SIG_IGN)\nhandle_signals()\ninterrupt()\nprint('went on')"
    assert run_code(tmp_path, code) == (0, ["went on"], [])


@pytest.mark.slow
def test_hangup_that_nohup_ignores_stays_ignored(tmp_path):
    code = "signal.signal(signal.SIGHUP, signal.SIG_IGN)\nhandle_signals()\n"
    code += "from keras_bert_flow.training.loop.train import stop_requests\n"
    code += "with stop_requests() as requested:\n    os.kill(os.getpid(), signal.SIGHUP)\n    print(requested.is_set())"
    done = run_code(tmp_path, code, KERAS_BACKEND="torch")
    assert done[:2] == (0, ["False"])


def test_interrupt_shows_the_cursor_again(tmp_path):
    leader, follower = pty.openpty()
    code = (
        "import os, signal\nfrom keras_bert_flow.console.interrupts import handle_signals\nhandle_signals()\n"
        "from keras_bert_flow.console.progress import training_progress\n"
        "with training_progress(10) as report:\n    report({'step': 1, 'loss': 1.0})\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
    )
    environment = os.environ | {"TERM": "xterm"}
    command = [sys.executable, "-c", code]
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdin=follower, stdout=follower, stderr=follower)
    os.close(follower)
    shown = read_terminal(leader)
    assert process.wait(PATIENCE_SECONDS) == INTERRUPTED
    assert shown.rindex(b"\x1b[?25h") > shown.rindex(b"\x1b[?25l")
    assert f"\n{INTERRUPTED_LINE}" in shown.decode()
