"""Time what a run costs beside its stages, and a run whose stages are finished, and print a Markdown table.

    python -m benchmarks.orchestration configs/quickstart.yaml --keep out/orchestration

`kbf run` says of each stage how long its process took, from its start to its end; the rest of the run is Prefect's
server, the flow, the checks and the plan. Repeated with the same folder, all stages are finished, and all is the rest.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

DONE = re.compile(r"(?P<stage>[a-z]+): done in (?P<seconds>[\d.]+) s$")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", help="configuration to run")
    parser.add_argument("--keep", type=Path, help="folder of results; by default one that is removed")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a setting")
    parser.add_argument("--repeats", type=int, default=3, help="runs with all stages finished")
    return parser.parse_args()


def run(arguments: argparse.Namespace, folder: Path) -> tuple[float, float, dict[str, float]]:
    """Return the seconds of a run, those to its first line, and those of each stage that it made."""
    changes = [part for change in (*arguments.set, f"runs={folder / 'runs'}") for part in ("--set", change)]
    environment = os.environ | {"PREFECT_HOME": str(folder / "prefect"), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "keras_bert_flow", "run", arguments.config, *changes]
    started, first, stages = time.monotonic(), None, {}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    for line in process.stdout:
        first = time.monotonic() - started if first is None else first
        if found := DONE.search(line.rstrip()):
            stages[found["stage"]] = float(found["seconds"])
    if process.wait():
        raise SystemExit(f"The run ended with status {process.returncode}.")
    return time.monotonic() - started, first, stages


def main() -> None:
    arguments = parse_arguments()
    with tempfile.TemporaryDirectory() as folder:
        place = arguments.keep.absolute() if arguments.keep else Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        print("| run | seconds | in stages | beside them | to the first line |")
        print("|---|---:|---:|---:|---:|")
        for _ in range(1 + arguments.repeats):
            seconds, first, stages = run(arguments, place)
            what = f"{len(stages)} stages made" if stages else "all stages finished"
            spent = sum(stages.values())
            print(f"| {what} | {seconds:.1f} | {spent:.1f} | {seconds - spent:.1f} | {first:.1f} |", flush=True)


if __name__ == "__main__":
    main()
