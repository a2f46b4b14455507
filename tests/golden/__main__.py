"""Check the golden results of all stages on all backends, or record them: `python -m tests.golden [--record]`."""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

from tests.golden import recording
from tests.golden.recording import ANYWHERE, BACKENDS
from tests.golden.results import Results

ROOT = Path(__file__).parents[2]
# As in the Makefile: XLA compiles quickly rather than well, and each process computes in one thread.
SURROUNDINGS = {
    "XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false",
    "OMP_NUM_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "KBF_PROGRESS": "off",
    "PYTHONPATH": str(ROOT),
}


def main(arguments: Sequence[str]) -> str:
    """Check or record; return why it failed, empty if it did not."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
    parser.add_argument("--record", action="store_true", help="record what may be recorded")
    is_recording = parser.parse_args(arguments).record
    if lacking := [name for name in BACKENDS if find_spec(name) is None]:
        return f"Each backend must be installed. Received: no {', '.join(lacking)}."
    golden, closures = recording.read_golden(), recording.find_closures()
    changed = recording.list_changed(golden, closures)
    versions = {backend: recording.find_versions(backend) for backend in BACKENDS}
    if changed:
        print(recording.describe_changed(changed))
    wanted: dict[str, list[str]] = {}
    for place in ("tensorflow", "jax", "torch", ANYWHERE):  # the longest first
        is_other = golden.versions.get(place) != versions.get(place) or not is_recording
        wanted[place] = [
            stage
            for stage in recording.stages_of(place)
            if is_other or stage in changed or not golden.stages[stage].results.get(place)
        ]
    try:
        found = compute({place: stages for place, stages in wanted.items() if stages})
    except subprocess.CalledProcessError as error:
        return f"The results could not be computed. {' '.join(error.cmd[-5:])} ended with:\n{error.stderr[-3000:]}"
    by_stage: dict[str, dict[str, Results]] = {}
    for place, stages in found.items():
        for stage, results in stages.items():
            by_stage.setdefault(stage, {})[place] = results
    after, refusals = recording.decide(golden, closures, by_stage, versions)
    if refusals:
        return "\n".join([*refusals, "Nothing is recorded."])
    if is_recording:
        recording.write_golden(after)
        print(f"Recorded: {len(after.modules)} modules of {len(after.stages)} stages.")
        return ""
    print("The results are as recorded.")
    return recording.HELP if changed else ""


def compute(wanted: Mapping[str, Sequence[str]]) -> dict[str, dict[str, Results]]:
    """Return place → stage → its results, computed in a process for each place.

    Raises:
        CalledProcessError: one of them failed.
    """

    def run(place: str) -> dict[str, Results]:
        began = time.monotonic()
        backend = {"KERAS_BACKEND": "torch" if place == ANYWHERE else place}
        command = [sys.executable, "-m", "tests.golden.results", *wanted[place]]
        environment = os.environ | SURROUNDINGS | backend
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
        where = "" if place == ANYWHERE else f" on {place}"
        print(f"{', '.join(wanted[place])}{where}: {time.monotonic() - began:.0f} s")
        return json.loads(done.stdout.splitlines()[-1])

    with ThreadPoolExecutor(min(len(BACKENDS), os.cpu_count() or 1)) as pool:
        return dict(zip(wanted, pool.map(run, wanted), strict=True))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) or 0)
