"""Time training on records in an object store beside the same records on a disk, and print a Markdown table.

    KERAS_BACKEND=torch OMP_NUM_THREADS=1 python -m benchmarks.store_reading --records out/records

The store is moto's S3 on this machine. A first batch is read from a disk, and from the store with an empty cache and
with a warm one. Then one model trains on the disk's records and on the warm cache's, a few steps each, turn about, so
that what else the machine does meets both; a second reader of the disk shows the noise.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras_bert_flow as kbf
from keras_bert_flow.results.manifest import read_manifest
from keras_bert_flow.stores.fetching import stop_downloads
from tests.object_store import BUCKET, client, object_store
from tests.troubled_store import troubled

DISK, AGAIN, WARM = "disk", "disk, again", "S3, warm cache"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=Path, required=True, help="of `kbf records`, of the objective mlm")
    parser.add_argument("--size", default="tiny")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=10, help="in a turn")
    parser.add_argument("--rounds", type=int, default=15, help="turns of each")
    return parser.parse_args()


def read_batches(place: Any, batch_size: int) -> Iterator[Any]:
    return iter(kbf.pretraining_dataset(kbf.PretrainingRecords(place), batch_size, masking="dynamic"))


def time_first_batch(place: Any, batch_size: int) -> float:
    started = time.perf_counter()
    next(read_batches(place, batch_size))
    return time.perf_counter() - started


def take_turns(arguments: argparse.Namespace, readers: dict[str, Iterator[Any]]) -> dict[str, list[float]]:
    """Return the seconds of a step in each turn; who is first changes from turn to turn."""
    config = read_manifest(arguments.records).config
    backbone = kbf.BertBackbone.from_size(
        arguments.size,
        use_pooler=False,
        vocabulary_size=config["vocabulary_size"],
        max_positions=config["sequence_length"],
    )
    model = kbf.MaskedLM(backbone)
    model.compile()
    seconds: dict[str, list[float]] = {name: [] for name in readers}
    for turn in range(arguments.rounds + 1):
        names = list(readers)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            started = time.perf_counter()
            for _ in range(arguments.steps):
                model.train_on_batch(*next(readers[name]))
            if turn:  # the first compiles
                seconds[name].append((time.perf_counter() - started) / arguments.steps)
    return seconds


def main() -> None:
    arguments = parse_arguments()
    with tempfile.TemporaryDirectory() as folder, object_store(Path(folder)) as environment:
        store = client(environment)
        for path in sorted(arguments.records.iterdir()):
            store.upload_file(str(path), BUCKET, f"records/{path.name}")
        with troubled(environment["AWS_ENDPOINT_URL"]) as proxy:
            os.environ |= environment | {"AWS_ENDPOINT_URL": proxy.address, "KBF_CACHE": f"{folder}/cache"}
            address = f"s3://{BUCKET}/records"
            time_first_batch(arguments.records, arguments.batch_size)  # loads what all need
            first = {"disk": time_first_batch(arguments.records, arguments.batch_size)}
            first["S3, empty cache"] = time_first_batch(address, arguments.batch_size)
            kbf.PretrainingRecords(address).wait()
            asked = len(proxy.seen)
            first["S3, warm cache"] = time_first_batch(address, arguments.batch_size)
            places = {DISK: arguments.records, WARM: address, AGAIN: arguments.records}
            seconds = take_turns(
                arguments, {name: read_batches(at, arguments.batch_size) for name, at in places.items()}
            )
            print(f"{len(proxy.seen) - asked} requests to the store since the cache is warm, of its manifest.\n")
            stop_downloads()
    print("| | seconds to the first batch |\n|---|---:|")
    for name, value in first.items():
        print(f"| {name} | {value:.2f} |")
    print("\n| records | ms a step, median | of the disk's | median of the turns' ratios ± standard error |")
    print("|---|---:|---:|---:|")
    for name, values in seconds.items():
        ratios = [value / disk for value, disk in zip(values, seconds[DISK], strict=True)]
        error = statistics.stdev(ratios) / len(ratios) ** 0.5
        ratio = statistics.median(values) / statistics.median(seconds[DISK])
        print(
            f"| {name} | {1000 * statistics.median(values):.1f} | {ratio:.3f} | "
            f"{statistics.median(ratios):.3f} ± {error:.3f} |"
        )


if __name__ == "__main__":
    main()
