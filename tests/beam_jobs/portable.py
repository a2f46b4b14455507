"""Run the small records job in a process of its own, also through Beam's portable job service and its worker pool."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.patience import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
SERVICE = "apache_beam.runners.portability.local_job_service_main"
POOL = "apache_beam.runners.worker.worker_pool_main"


def run_job(corpus, vocabulary_file: Path, output: Path | str, *options: str) -> None:
    command = [sys.executable, "-m", "tests.beam_jobs.job", *corpus.input, vocabulary_file, output, *options]
    subprocess.run(command, cwd=ROOT, check=True, timeout=PATIENCE_SECONDS, capture_output=True)


def run_vocabulary_job(corpus, output: Path | str, size: int, *options: str) -> None:
    command = [sys.executable, "-m", "keras_bert_flow", "vocab", "--output", output, "--size", str(size)]
    command += ["--set", f"corpus.lines={corpus.lines}", *(f"--input={path}" for path in corpus.input), *options]
    subprocess.run(command, cwd=ROOT, check=True, timeout=PATIENCE_SECONDS, capture_output=True)


@contextmanager
def portable_job_service(folder: Path) -> Iterator[list[str]]:
    """Start the service, the path that Flink and Spark take, and yield the options of a job that goes through it."""
    port_file = folder / "port"
    command = [sys.executable, "-m", SERVICE, "--port_file", port_file]
    service = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not port_file.exists() and service.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        endpoint = f"--job_endpoint=localhost:{port_file.read_text()}"
        yield ["--runner=PortableRunner", endpoint, "--environment_type=LOOPBACK"]
    finally:
        service.kill()
        service.wait()


@contextmanager
def worker_pool(folder: Path) -> Iterator[list[str]]:
    """Start a pool, as each machine of a cluster would have one, and yield the options of a job that has its workers.

    The pool starts workers by the name `python`, and in `folder`: they find this project by PYTHONPATH alone.
    """
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    command = [sys.executable, "-m", POOL, f"--service_port={port}"]
    environment = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)}
    pool = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not _listens(port) and pool.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        yield ["--environment_type=EXTERNAL", f"--environment_config=localhost:{port}"]
    finally:
        pool.terminate()
        pool.wait(PATIENCE_SECONDS)


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("localhost", port)) == 0
