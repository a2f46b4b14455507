"""Time the check of a task's tables that `kbf run` makes before any work.

    python benchmarks/preflight.py [ROWS]

Prints processor seconds and the peak memory of the process.
"""

import resource
import sys
import tempfile
import time
from pathlib import Path

from keras_bert_flow.checks.stages import check_task
from keras_bert_flow.config.pipeline import PipelineConfig

ROW = "a film that is as good as its first half hour and far too long after that number {}\t{}\n"  # 17 words
DEV_ROWS = 10_000


def main(rows: int) -> None:
    """Write a table for training and one to be measured on, and check both."""
    with tempfile.TemporaryDirectory() as folder:
        for name, count in (("train.tsv", rows), ("dev.tsv", DEV_ROWS)):
            with open(Path(folder) / name, "w", encoding="utf-8") as file:
                file.write("text\tlabel\n")
                file.writelines(ROW.format(number, number % 2) for number in range(count))
        config = PipelineConfig(task={"train": f"{folder}/train.tsv", "dev": f"{folder}/dev.tsv"})
        started = time.process_time()
        check_task(config)
        seconds = time.process_time() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{rows:,} + {DEV_ROWS:,} rows: {seconds:.1f} s of processor time, peak {peak:,.0f} MB")


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 1_000_000)
