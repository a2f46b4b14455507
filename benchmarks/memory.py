"""Print the peak memory of each process of a job, for a corpus and for one ten times as large, as a Markdown table.

    python benchmarks/memory.py --input wiki_en_train.txt --vocab vocab.txt
    python benchmarks/memory.py --input wiki_en_train.txt --vocab vocab.txt --times 10 --jobs records --shards 1

The larger corpora repeat the text with a number before each line, so that no document is like another. The peak is the
high-water mark of resident memory that Linux keeps (VmHWM), read twenty times a second. Of several processes of one
kind the largest is told.
"""

import argparse
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
WORKER = "sdk_worker_main"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--input", required=True, help="a file of text, with blank lines between documents")
    parser.add_argument("--vocab", required=True, help="vocab.txt")
    parser.add_argument("--times", nargs="+", type=int, default=(1, 10), help="how often the text is repeated")
    parser.add_argument("--jobs", nargs="+", default=("records", "vocab"), choices=("records", "vocab"))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--duplication", type=int, default=2)
    parser.add_argument("--shards", type=int, help="training files; as many as the job picks where it is left out")
    parser.add_argument("--timeout-seconds", type=float, default=600)
    return parser.parse_args()


def repeat_text(source: str, path: Path, times: int) -> int:
    """Write the text `times` times and return its bytes."""
    lines = Path(source).read_text(encoding="utf-8").splitlines()
    with open(path, "w", encoding="utf-8") as file:
        for number in range(times):
            file.writelines(f"{number} {line}\n" if line.strip() else "\n" for line in lines)
            file.write("\n")
    return path.stat().st_size


def measure(command: list[str], timeout_seconds: float) -> tuple[float, dict[str, int]]:
    """Run a command and return (seconds, peak bytes of the main process and of the largest worker)."""
    started, peaks = time.monotonic(), {}
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    while process.poll() is None:
        if time.monotonic() - started > timeout_seconds:
            process.kill()
            raise TimeoutError(f"The job took longer than {timeout_seconds} seconds.")
        for pid in (process.pid, *descendants(process.pid)):
            kind, peak = peak_of(pid)
            peaks[kind] = max(peaks.get(kind, 0), peak)
        time.sleep(0.05)
    if process.returncode:
        raise RuntimeError(f"The job failed with status {process.returncode}.")
    return time.monotonic() - started, peaks


def children_seconds() -> float:
    """Return the processor seconds of all processes that this one, or a child of it, has waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def descendants(pid: int) -> list[int]:
    found = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in _read(children).split():
            found += [int(child), *descendants(int(child))]
    return found


def peak_of(pid: int) -> tuple[str, int]:
    """Return what a process is and its peak of resident memory in bytes, 0 where it has ended."""
    command, status = _read(Path(f"/proc/{pid}/cmdline")), _read(Path(f"/proc/{pid}/status"))
    peak = next((int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM")), 0)
    return ("worker" if WORKER in command else "runner"), peak


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def main() -> None:
    arguments = parse_arguments()
    print("| job | text, MB | seconds | largest shard, MB | largest worker, MB | runner, MB |", flush=True)
    print("|---|---:|---:|---:|---:|---:|", flush=True)
    workers = [f"--direct_num_workers={arguments.workers}", "--direct_running_mode=multi_processing"]
    with tempfile.TemporaryDirectory() as folder:
        for job in arguments.jobs:
            for times in arguments.times:
                text, output = Path(folder) / "text.txt", Path(folder) / f"{job}-{times}"
                text_bytes = repeat_text(arguments.input, text, times)
                command = [sys.executable, "-m", "keras_bert_flow", job, "--input", str(text), "--output", str(output)]
                if job == "records":
                    command += ["--vocab", arguments.vocab, "--duplication", str(arguments.duplication)]
                    command += ["--shards", str(arguments.shards)] if arguments.shards else []
                seconds, peaks = measure([*command, *workers], arguments.timeout_seconds)
                shard_bytes = max((path.stat().st_size for path in output.glob("*.tfrecord")), default=0)
                megabytes = " | ".join(f"{size / 1e6:.0f}" for size in (shard_bytes, peaks["worker"], peaks["runner"]))
                print(f"| `{job}` | {text_bytes / 1e6:.1f} | {seconds:.0f} | {megabytes} |", flush=True)
                shutil.rmtree(output)


if __name__ == "__main__":
    main()
