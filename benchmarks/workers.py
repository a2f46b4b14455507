"""Print what two worker processes cost and gain in the data jobs, as a Markdown table.

    python benchmarks/workers.py --input wiki_en_train.txt --vocab vocab.txt --megabytes 10

The jobs are whole commands on the first megabytes of the text, with one process and two worker processes by turns; the
least of several rounds is printed. Processor seconds are those of all processes. The clock only tells what is gained
where neither of two cores has other work.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from records import RUNS, children_seconds  # the script beside this one


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--input", required=True, help="a file of text, a paragraph a line")
    parser.add_argument("--vocab", required=True, help="vocab.txt, uncased")
    parser.add_argument("--megabytes", type=float, default=10.0, help="of the text, the first ones")
    parser.add_argument("--duplication", type=int, nargs="+", default=[1, 5], help="of the records")
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


def run(command: list[str]) -> tuple[float, float]:
    """Return (seconds, processor seconds) of a job."""
    with tempfile.TemporaryDirectory() as folder:
        before, cpu_before = time.perf_counter(), children_seconds()
        subprocess.run([*command, "--output", f"{folder}/output"], check=True, capture_output=True)
        return time.perf_counter() - before, children_seconds() - cpu_before


def main() -> None:
    arguments = parse_arguments()
    records = ["records", "--vocab", arguments.vocab, "--duplication"]
    jobs = {f"`records`, duplication {number}": [*records, str(number)] for number in arguments.duplication}
    jobs["`vocab`"] = ["vocab"]
    print("| job | processes | seconds | processor seconds |", "|---|---:|---:|---:|", sep="\n", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text.txt"
        with open(arguments.input, "rb") as file:
            start = file.read(int(arguments.megabytes * 1e6))
        text.write_bytes(start[: start.rindex(b"\n") + 1])
        for name, job in jobs.items():
            command = [sys.executable, "-m", "keras_bert_flow", *job, "--input", str(text)]
            timed = {workers: [] for workers in RUNS}
            for _ in range(arguments.rounds):
                for workers, options in RUNS.items():
                    timed[workers].append(run([*command, *options]))
            for workers, times in timed.items():
                least = [min(column) for column in zip(*times, strict=True)]
                print(f"| {name} | {workers} | {least[0]:.1f} | {least[1]:.1f} |", flush=True)


if __name__ == "__main__":
    main()
