"""Print what reading a record costs beside protobuf, then read batches in threads for long, under `faulthandler`.

    python benchmarks/record_reading.py
    python benchmarks/record_reading.py --steps 200000 --threads 4 --batch-size 32

Records have 128 tokens and 20 predictions. Each thread reads steps of a data set of its own, as `fit` does, so as many
threads of Grain's decode records at the same time. protobuf's descriptors were not safe there (upb of protobuf 6.33):
the process died of a segmentation fault after a few thousand steps.
"""

import argparse
import faulthandler
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # the tests know how protobuf reads a record
from keras_bert_flow.data.pretraining import pretraining_dataset
from keras_bert_flow.data.pretraining_records import PretrainingRecords
from keras_bert_flow.records.example import decode_example, encode_records
from tests.oracles.examples import decode_by_protobuf
from tests.oracles.tiny_records import write_tiny_records

LENGTH, PREDICTIONS, VOCABULARY = 128, 20, 30_522


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=2000, help="of all threads together")
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=32)
    return parser.parse_args()


def make_records(count: int) -> list[bytes]:
    rng = np.random.default_rng(0)
    return encode_records(
        token_ids=rng.integers(0, VOCABULARY, (count, LENGTH)),
        segment_ids=np.tile(np.repeat([0, 1], LENGTH // 2), (count, 1)),
        lengths=np.full(count, LENGTH),
        mask_positions=np.sort(rng.permuted(np.tile(np.arange(LENGTH), (count, 1)), axis=1)[:, :PREDICTIONS]),
        mask_ids=rng.integers(0, VOCABULARY, (count, PREDICTIONS)),
        mask_counts=np.full(count, PREDICTIONS),
        sentence_labels=rng.random(count) < 0.5,
    )


def time_decoding(decode, records: list[bytes], repeats: int = 5) -> float:
    """Return the processor seconds of a record, the best of several rounds."""
    rounds = []
    for _ in range(repeats):
        started_at = time.process_time()
        for record in records:
            decode(record)
        rounds.append((time.process_time() - started_at) / len(records))
    return min(rounds)


def read(records: PretrainingRecords, batch_size: int, steps: int, seed: int) -> int:
    batches = iter(pretraining_dataset(records, batch_size, seed=seed, masking="static"))
    return sum(len(next(batches)[0]["token_ids"]) for _ in range(steps))


def main() -> None:
    arguments = parse_arguments()
    faulthandler.enable()
    records = make_records(1000)
    ours, theirs = time_decoding(decode_example, records), time_decoding(decode_by_protobuf, records)
    print("| decoder | µs a record | of protobuf's |\n|---|---:|---:|")
    print(f"| this package | {ours * 1e6:.1f} | {ours / theirs:.2f} |")
    print(f"| protobuf | {theirs * 1e6:.1f} | 1 |\n", flush=True)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(arguments.threads) as threads:
        opened = PretrainingRecords(write_tiny_records(Path(folder) / "records", train=(500, 500)))
        each, started_at = arguments.steps // arguments.threads, time.perf_counter()
        jobs = [threads.submit(read, opened, arguments.batch_size, each, seed) for seed in range(arguments.threads)]
        count = sum(job.result() for job in jobs)
    print(
        f"{each * arguments.threads:,} steps, {count:,} records, read in {arguments.threads} threads without a fault: "
        f"{time.perf_counter() - started_at:.0f} s"
    )


if __name__ == "__main__":
    main()
