"""Print the peak memory of a process that sorts one shard of records, by the size of the shard, as a Markdown table.

    python benchmarks/shard_memory.py --megabytes 64 256 1024

Random records are written as sorted runs, as workers do, and a process of its own merges them into a TFRecord file. The
peak is that process's high-water mark of resident memory, beside that of one which writes a shard of a single record.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from memory import peak_of  # the script beside this one

from beam_jobs.build_records import ShardPlan, deal_records, write_part
from beam_jobs.exchange import WriteRuns
from beam_jobs.instances import TRAIN
from beam_jobs.sorted_runs import merge_runs

ONE_SHARD = ShardPlan(1, 1, 1)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", nargs="+", type=float, default=(64, 256, 1024), help="sizes of the shard")
    parser.add_argument("--record-bytes", type=int, default=800, help="of a record of 128 tokens and 20 predictions")
    parser.add_argument("--merge", help="a folder of runs to merge, for the process that is measured")
    return parser.parse_args()


def write_runs(folder: Path, records: int, record_bytes: int) -> None:
    writer = WriteRuns(str(folder / "runs"))
    writer.start_bundle()
    for _ in range(records):
        for dealt in deal_records((TRAIN, [os.urandom(record_bytes)]), ONE_SHARD, 0):
            list(writer.process(dealt))
    list(writer.finish_bundle())


def measure_merge(folder: Path) -> tuple[int, int]:
    """Merge the runs in a process of its own and return (bytes of the shard, peak bytes of memory)."""
    command = [sys.executable, __file__, "--merge", str(folder)]
    answer = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600).stdout
    shard_bytes, peak = map(int, answer.split())
    return shard_bytes, peak


def merge(folder: Path) -> None:
    runs = sorted(map(str, (folder / "runs").iterdir()))
    ((_, (_, _, (shard, _))),) = write_part(0, merge_runs(0, runs), ONE_SHARD, str(folder))
    print(shard[1], peak_of(os.getpid())[1])


def main() -> None:
    arguments = parse_arguments()
    if arguments.merge:
        merge(Path(arguments.merge))
        return
    print("| shard, MB | records | runs | peak, MB | above one record, MB |\n|---:|---:|---:|---:|---:|", flush=True)
    least = None
    for megabytes in (0, *arguments.megabytes):
        records = max(1, int(megabytes * 1e6 / (arguments.record_bytes + 16)))
        with tempfile.TemporaryDirectory() as folder:
            write_runs(Path(folder), records, arguments.record_bytes)
            runs = len(list((Path(folder) / "runs").iterdir()))
            shard_bytes, peak = measure_merge(Path(folder))
        least = least or peak
        megabytes = " | ".join(f"{number / 1e6:.0f}" for number in (peak, peak - least))
        print(f"| {shard_bytes / 1e6:.0f} | {records} | {runs} | {megabytes} |", flush=True)


if __name__ == "__main__":
    main()
