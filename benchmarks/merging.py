"""Print what merging sorted runs costs per byte, few of them and many, as a Markdown table.

    python -m benchmarks.merging --runs 100 10000 --buckets 4 100 --run-kilobytes 200

The files exchange (`beam_jobs/exchange.py`) writes items in sorted runs, and reads each bucket from all of
them at once. More than 2,500 runs are first merged into the square root of their number. The last column leaves
that out and reads each bucket from all runs. Items are 340 random bytes, which are about those of a record of 128
tokens.
"""

import argparse
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from beam_jobs.exchange import join_group, name_joined_run
from beam_jobs.sorted_runs import merge_runs, write_run

ITEM_BYTES = 340


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", nargs="+", type=int, default=(100, 10_000))
    parser.add_argument("--buckets", nargs="+", type=int, default=(4, 100), help="one number for each number of runs")
    parser.add_argument("--run-kilobytes", type=int, default=200)
    parser.add_argument("--folder", help="where to make the runs; they are removed")
    return parser.parse_args()


def write_runs(folder: str, runs: int, buckets: int, run_bytes: int) -> list[str]:
    """Write runs of random items, and return their paths."""
    rng = np.random.default_rng(0)
    paths = []
    for _ in range(runs):
        items: dict[int, list[bytes]] = {bucket: [] for bucket in range(buckets)}
        for bucket in rng.integers(0, buckets, run_bytes // ITEM_BYTES).tolist():
            items[bucket].append(rng.bytes(ITEM_BYTES))
        paths.append(write_run(folder, items))
    return paths


def join_runs(folder: str, paths: Sequence[str]) -> list[str]:
    """Merge runs as the exchange does, and return the runs that each bucket is read from."""
    groups = defaultdict(list)
    for path in paths:
        name, _ = name_joined_run(path, len(paths))
        groups[name].append(path)
    return [join_group(group, folder) for group in groups.items()]


def read_buckets(paths: Sequence[str], buckets: int, expected: int) -> None:
    """Read the items of each bucket in order."""
    found = sum(sum(1 for _ in merge_runs(bucket, paths)) for bucket in range(buckets))
    if found != expected:
        raise RuntimeError(f"{found} of {expected} items were read.")


def main() -> None:
    arguments = parse_arguments()
    print("| runs | buckets | GB | CPU s per GB | of that, first level | in one level | ratio to the first row |")
    print("|---:|---:|---:|---:|---:|---:|---:|", flush=True)
    first = None
    for runs, buckets in zip(arguments.runs, arguments.buckets, strict=True):
        folder = tempfile.mkdtemp(dir=arguments.folder)
        try:
            paths = write_runs(folder, runs, buckets, arguments.run_kilobytes * 1000)
            expected = runs * (arguments.run_kilobytes * 1000 // ITEM_BYTES)
            gigabytes = expected * ITEM_BYTES / 1e9
            start = time.process_time()
            joined = join_runs(folder, paths)
            middle = time.process_time()
            read_buckets(joined, buckets, expected)
            end = time.process_time()
            read_buckets(paths, buckets, expected)
            alone = time.process_time() - end
        finally:
            shutil.rmtree(folder)
        seconds = (end - start) / gigabytes
        first = first or seconds
        cells = [f"{runs:,}", f"{buckets}", f"{gigabytes:.2f}", f"{seconds:.1f}", f"{(middle - start) / gigabytes:.1f}"]
        print(f"| {' | '.join(cells)} | {alone / gigabytes:.1f} | {seconds / first:.2f} |", flush=True)


if __name__ == "__main__":
    main()
