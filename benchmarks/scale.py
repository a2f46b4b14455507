"""Print what a GB of text costs in both Beam jobs, through files and through the engine's shuffle, as a Markdown table.

    python -m benchmarks.scale --gigabytes 0.1 1 --vocab vocab.txt
    python -m benchmarks.scale --gigabytes 0.1 --vocab vocab.txt --service

The text is made here: words of the vocabulary by Zipf's law, in lines of about 20 and documents of about 300. Each job
runs twice: once with one worker process beside the runner, for processor seconds and peaks of memory
(`benchmarks/memory.py`), and once in one process, where what goes into an exchange is counted as it is packed, and each
file that is opened between the steps. What the engine's combiner of word counts moves is not among it. The local runner
keeps in its memory what the engine's shuffle moves; a cluster keeps it on its disks.

`--one-process`: the measured run has no worker beside the runner either. Beam's local runner sends a worker all of a
step's input in one message, and gRPC has none over 2 GiB, which ends `--exchanges engine` at a few GB of text.

`--service`: the processor seconds and peaks are those of Beam's portable job service, to which a job speaks as to Flink
and Spark, and of the worker in the process that starts the job; the larger of both counts as the runner.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from beam_jobs import build_records, build_vocabulary
from beam_jobs.sorted_runs import Packer
from benchmarks.memory import children_seconds, measure
from keras_bert_flow.config.text import CorpusConfig, RecordsConfig, VocabularyConfig

ROOT = Path(__file__).parents[1]
WORDS, ZIPF = 500_000, 1.1  # distinct words, and how fast they get rarer
LINE_WORDS, DOCUMENT_LINES = 20, 15
DRAWN_DOCUMENTS = 1000  # at a time
SERVICE = "apache_beam.runners.portability.local_job_service_main"
WORKER = ["--direct_num_workers=1", "--direct_running_mode=multi_processing"]
HEADER = (
    "job",
    "exchange",
    "text, GB",
    "CPU s per GB",
    "largest worker, MB",
    "runner, MB",
    "moved, GB per GB",
    "files opened per GB",
)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", nargs="+", type=float, default=(0.1, 1.0))
    parser.add_argument("--vocab", required=True, help="vocab.txt")
    parser.add_argument("--jobs", nargs="+", default=("records", "vocab"), choices=("records", "vocab"))
    parser.add_argument("--exchanges", nargs="+", default=("files", "engine"), choices=("files", "engine"))
    parser.add_argument("--duplication", type=int, default=1)
    parser.add_argument("--service", action="store_true", help="run the jobs through Beam's portable job service")
    parser.add_argument("--one-process", action="store_true", help="without a worker process beside the runner")
    parser.add_argument("--timeout-seconds", type=float, default=7200)
    return parser.parse_args()


def write_text(path: Path, size: int, vocab: str) -> int:
    """Write about so many bytes of text, and return how many.

    The most frequent words are whole pieces of the vocabulary, rarer ones are made of several.
    """
    rng = np.random.default_rng(0)
    pieces = [line for line in Path(vocab).read_text(encoding="utf-8").split() if line.removeprefix("##").isalpha()]
    words = [piece for piece in pieces if not piece.startswith("##")]
    rests = [piece.removeprefix("##") for piece in pieces if piece.startswith("##")]
    while len(words) < WORDS:
        chosen = rng.integers(0, len(rests), rng.integers(1, 4))
        words.append(words[rng.integers(0, len(pieces) - len(rests))] + "".join(rests[number] for number in chosen))
    chances = np.arange(1, WORDS + 1) ** -ZIPF
    limits = np.cumsum(chances / chances.sum())
    written = 0
    with open(path, "w", encoding="utf-8") as file:
        while written < size:
            lines = np.maximum(1, rng.poisson(DOCUMENT_LINES, DRAWN_DOCUMENTS))
            lengths = 1 + rng.poisson(LINE_WORDS, lines.sum())
            chosen = np.minimum(np.searchsorted(limits, rng.random(lengths.sum())), WORDS - 1).tolist()
            ends = np.cumsum(lengths).tolist()
            last_lines = {*np.cumsum(lines).tolist()}
            start = 0
            for number, end in enumerate(ends, 1):
                text = " ".join([words[word] for word in chosen[start:end]])
                written += file.write(f"{text}.\n\n" if number in last_lines else f"{text}.\n")
                start = end
                if number in last_lines and written >= size:
                    break
    return written


def run_job(job: str, text: str, vocab: str, duplication: int, output: str, options: list[str]) -> None:
    corpus = CorpusConfig(input=(text,), lines="sentences")
    if job == "vocab":
        build_vocabulary.build_vocabulary(corpus, VocabularyConfig(size=8000), output, options)
    else:
        build_records.build_records(corpus, RecordsConfig(duplication=duplication), vocab, False, output, 1, options)


def run_job_in_service(job: str, text: str, vocab: str, duplication: int, output: str, options: list[str]) -> None:
    """Run a job through a portable job service, which is a child of this process."""
    with tempfile.TemporaryDirectory() as folder:
        port = Path(folder) / "port"
        service = subprocess.Popen([sys.executable, "-m", SERVICE, "--port_file", str(port)], stderr=subprocess.DEVNULL)
        try:
            while not port.exists() and service.poll() is None:
                time.sleep(0.1)
            where = [f"--job_endpoint=localhost:{port.read_text()}", "--environment_type=LOOPBACK"]
            run_job(job, text, vocab, duplication, output, ["--runner=PortableRunner", *where, *options])
        finally:
            service.kill()
            service.wait()


def count_job(job: str, text: str, vocab: str, duplication: int, output: str, options: list[str]) -> None:
    """Run a job in this process, and print the bytes that its exchange moved and the files between its steps."""
    moved = Counter(bytes=0, files=0)
    pack = Packer.pack

    def count_packed(packer: Packer, element: Any) -> bytes:
        packed = pack(packer, element)
        moved["bytes"] += len(packed)
        return packed

    def count_open(event: str, arguments: tuple) -> None:
        if event == "open" and isinstance(arguments[0], str) and f"{os.sep}.out.work{os.sep}." in arguments[0]:
            moved["files"] += 1

    Packer.pack = count_packed  # both exchanges pack what they move
    sys.addaudithook(count_open)
    run_job(job, text, vocab, duplication, output, options)
    print(json.dumps(moved))


def call(function: str, *arguments: Any) -> list[str]:
    """Return the command that calls a function of this module: Beam finds what is in a module, not in a script."""
    code = f"from benchmarks import scale; scale.{function}(*{arguments!r})"
    return [sys.executable, "-c", code]


def main() -> None:
    arguments = parse_arguments()
    print("| " + " | ".join(HEADER) + " |", "|---|---|" + "---:|" * (len(HEADER) - 2), sep="\n", flush=True)
    for gigabytes in arguments.gigabytes:
        with tempfile.TemporaryDirectory() as folder:
            text = Path(folder) / "text.txt"
            size = write_text(text, int(gigabytes * 1e9), arguments.vocab) / 1e9
            for job in arguments.jobs:
                for exchange in arguments.exchanges:
                    given = (job, str(text), arguments.vocab, arguments.duplication)
                    output, options = Path(folder) / f"{job}-{exchange}", [f"--exchange={exchange}"]
                    command = call("count_job", *given, str(output / "counted" / "out"), options)
                    counted = json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)
                    before = children_seconds()
                    measured = str(output / "measured" / "out")
                    if arguments.service:
                        command = call("run_job_in_service", *given, measured, options)
                    else:
                        command = call("run_job", *given, measured, options + ([] if arguments.one_process else WORKER))
                    _, peaks = measure(command, arguments.timeout_seconds)
                    print_row(job, exchange, size, children_seconds() - before, peaks, counted)
                    shutil.rmtree(output)


def print_row(
    job: str, exchange: str, size: float, seconds: float, peaks: dict[str, int], counted: dict[str, int]
) -> None:
    cells = [f"`{job}`", exchange, f"{size:.2f}", f"{seconds / size:.0f}"]
    cells += [f"{peaks[kind] / 1e6:.0f}" if kind in peaks else "-" for kind in ("worker", "runner")]
    cells += [f"{counted.get('bytes', 0) / 1e9 / size:.2f}", f"{counted.get('files', 0) / size:,.0f}"]
    print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
