"""Print the memory of `kbf vocab` for many distinct words, as a Markdown table.

    python benchmarks/distinct_words.py --words 1000000 10000000

Each word is random letters and occurs once. Peaks are the high-water marks of resident memory (VmHWM), of the main
process and of the larger of two workers; processor seconds are those of all of them.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
from memory import measure  # the script beside this one
from records import RUNS, children_seconds

from keras_bert_flow.results.manifest import read_manifest

LETTERS, WORDS_A_LINE, LINES_A_DOCUMENT = 8, 20, 50


def write_words(path: Path, number: int) -> None:
    """Write different words of eight letters: numbers in base 26, in a random order."""
    rng = np.random.default_rng(0)
    with open(path, "w") as file:
        step, place = 9_299_999_989, int(rng.integers(26**LETTERS))  # without a factor of 26: no number comes twice
        for first in range(0, number, 1_000_000):
            count = min(1_000_000, number - first)
            numbers = (place + step * np.arange(first, first + count, dtype=object)) % 26**LETTERS
            digits = (numbers.astype(np.int64)[:, None] // 26 ** np.arange(LETTERS)) % 26
            words = (digits + ord("a")).astype(np.uint8).view(f"S{LETTERS}")[:, 0].astype(str).tolist()
            for start in range(0, count, WORDS_A_LINE):
                file.write(" ".join(words[start : start + WORDS_A_LINE]) + "\n")
                if start // WORDS_A_LINE % LINES_A_DOCUMENT == 0:
                    file.write("\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--words", nargs="+", type=int, default=[1_000_000, 10_000_000])
    parser.add_argument("--size", type=int, default=30_522)
    parser.add_argument("--timeout-seconds", type=float, default=1800)
    arguments = parser.parse_args()
    print("| distinct words | dropped | processor seconds | largest worker, MB | main process, MB |", flush=True)
    print("|---:|---:|---:|---:|---:|", flush=True)
    for number in arguments.words:
        with tempfile.TemporaryDirectory() as folder:
            text, output = Path(folder) / "words.txt", Path(folder) / "vocabulary"
            write_words(text, number)
            command = [sys.executable, "-m", "keras_bert_flow", "vocab", "--input", str(text), "--output", str(output)]
            before = children_seconds()
            _, peaks = measure([*command, "--size", str(arguments.size), *RUNS[2]], arguments.timeout_seconds)
            seconds, counters = children_seconds() - before, read_manifest(output).counters
        dropped = counters.get("distinct_words_dropped", 0)
        megabytes = " | ".join(f"{peaks[kind] / 1e6:.0f}" for kind in ("worker", "runner"))
        print(f"| {counters['distinct_words']:,} | {dropped:,} | {seconds:.0f} | {megabytes} |", flush=True)


if __name__ == "__main__":
    main()
