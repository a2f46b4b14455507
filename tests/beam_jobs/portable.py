"""Run the small records job in a process of its own, also through Beam's portable job service."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
SERVICE = "apache_beam.runners.portability.local_job_service_main"


def run_job(corpus, vocabulary_file: Path, output: Path, *options: str) -> None:
    command = [sys.executable, "-m", "tests.beam_jobs.job", *corpus.input, vocabulary_file, output, *options]
    subprocess.run(command, cwd=ROOT, check=True, timeout=120, capture_output=True)


@contextmanager
def portable_job_service(folder: Path) -> Iterator[list[str]]:
    """Start the service, the path that Flink and Spark take, and yield the options of a job that goes through it."""
    port_file = folder / "port"
    command = [sys.executable, "-m", SERVICE, "--port_file", port_file]
    service = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not port_file.exists() and service.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        endpoint = f"--job_endpoint=localhost:{port_file.read_text()}"
        yield ["--runner=PortableRunner", endpoint, "--environment_type=LOOPBACK"]
    finally:
        service.kill()
        service.wait()
