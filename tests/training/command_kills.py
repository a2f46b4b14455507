"""Run `kbf` commands in a folder, kill them at given moments, and read what they publish for comparison."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import keras

from keras_bert_flow.results.manifest import COSTS, INFORMATIONAL, MANIFEST, SCORES
from tests.patience import PATIENCE_SECONDS, wait_until

ROOT = Path(__file__).parents[2]
LEADER, GROUP, WORKER = "leader", "group", "worker"
MARK = "KBF_KILL_TEST"  # in the environment of a command and of all that it starts
BEAM_WORKER = "sdk_worker_main"
TIMES = ("seconds", "per_second", "utilisation")


@dataclass
class Kill:
    """One process group that was killed, or ended before.

    Attributes:
        victim: which of its processes to kill.
        after_seconds: from its start.
        status: its exit status, negative where it died by a signal.
        is_hit: whether the victim was alive at that moment.
        output: what it printed on both streams.
    """

    victim: str
    after_seconds: float
    status: int = 0
    is_hit: bool = False
    output: str = ""


@dataclass
class Workplace:
    """A folder in which commands run with relative paths, so that equal commands have equal settings in any folder."""

    folder: Path
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    def start(self, arguments: Sequence[str], output: Path) -> subprocess.Popen:
        """Start `kbf` as the leader of a process group of its own."""
        temporary = self.folder / "tmp"
        temporary.mkdir(exist_ok=True)
        environment = {MARK: self.mark, "TMPDIR": str(temporary), "KERAS_BACKEND": keras.backend.backend()}
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        with open(output, "wb") as file:
            return subprocess.Popen(
                [sys.executable, "-P", "-X", "faulthandler", "-m", "keras_bert_flow", *arguments],
                cwd=self.folder,
                env=os.environ | environment | {"PYTHONPATH": path},
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def run(self, arguments: Sequence[str]) -> float:
        """Run a command to its end and return its seconds."""
        started_at, output = time.monotonic(), self.folder / "tmp.log"
        status = self.start(arguments, output).wait(PATIENCE_SECONDS)
        assert status == 0, output.read_text(errors="replace")[-3000:]
        return time.monotonic() - started_at

    def run_and_kill(self, arguments: Sequence[str], victim: str, after_seconds: float) -> Kill:
        """Start a command, kill a part of it after some seconds, and wait until none of its processes is left."""
        output = self.folder / "tmp.log"
        process, kill = self.start(arguments, output), Kill(victim, after_seconds)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(after_seconds)
        if process.returncode is None:
            kill.is_hit = _kill(process, victim, self.mark)
        kill.status = process.wait(PATIENCE_SECONDS)
        wait_until(lambda: not find_processes(self.mark))
        kill.output = output.read_text(errors="replace")
        return kill


def _kill(process: subprocess.Popen, victim: str, mark: str) -> bool:
    if victim == WORKER:
        workers = [pid for pid in find_processes(mark) if BEAM_WORKER in _read(pid, "cmdline")]
        for pid in workers[:1]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                return True
        return False  # not started yet, or finished
    (os.killpg if victim == GROUP else os.kill)(process.pid, signal.SIGKILL)
    return True


def find_processes(mark: str) -> list[int]:
    """List the processes with a mark in their environment, zombies aside."""
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    return sorted(pid for pid in pids if f"{MARK}={mark}" in _read(pid, "environ") and " Z " not in _read(pid, "stat"))


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except OSError:
        return ""


def read_published(folder: Path) -> dict[str, object]:
    """Return the bytes of every file of a published folder, and of informational files all but times.

    The digests of informational files are left out of the manifest; all else in it counts.
    """
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != COSTS]
    return {str(path.relative_to(folder)): _read_file(path) for path in paths}


def _read_file(path: Path) -> object:
    if path.name == MANIFEST:
        manifest = json.loads(path.read_bytes())
        manifest["digest"] = None  # of all the other fields
        manifest["files"] = [_without_changing_digests(file) for file in manifest["files"]]
        return manifest
    if path.name in SCORES:
        return without_times(json.loads(path.read_bytes()))
    if path.name not in INFORMATIONAL:
        return path.read_bytes()
    if path.suffix == ".jsonl":
        return [without_times(json.loads(line)) for line in path.read_text().splitlines()]
    return None  # a model card or an event file, which hold seconds in other ways


def _without_changing_digests(file: Mapping[str, object]) -> dict[str, object]:
    kept = ("name", "informational", "results") if file.get("informational") or file.get("results") else file
    return {name: file.get(name) for name in kept}


def without_times(value: object) -> object:
    if isinstance(value, dict):
        return {name: without_times(inner) for name, inner in value.items() if not name.endswith(TIMES)}
    return [without_times(inner) for inner in value] if isinstance(value, list) else value
