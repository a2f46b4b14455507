"""Print how fast records are built, beside a plain builder of the original's rules, as a Markdown table.

    python benchmarks/records.py --input wiki_en_train.txt --vocab vocab.txt

The plain builder (reference_builder.py, one process) reads the first documents, split into sentences beforehand; the
job is the whole command, from the start of its process to the published folder. `--duplication 5`, `mlm_nsp`, uncased.
Rates go by seconds on the clock; processor seconds, those of workers included, tell whether other work took its share.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path

import reference_builder
from memory import children_seconds  # the script beside this one

from keras_bert_flow.results.manifest import read_manifest
from keras_bert_flow.text.corpus.documents import ReadingRule, read_documents
from keras_bert_flow.text.vocabulary import read_vocabulary

PUBLISHED = 2_400  # instances per second of google-research/bert's create_pretraining_data.py, once seen, one process
HEADER = (
    "builder",
    "processes",
    "instances",
    "seconds",
    "processor seconds",
    "instances/s",
    "times the plain one",
    f"times {PUBLISHED:,}/s",
)
RUNS = {1: ["--direct_num_workers=1"], 2: ["--direct_num_workers=2", "--direct_running_mode=multi_processing"]}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--input", required=True, help="a file of text, a paragraph a line")
    parser.add_argument("--vocab", required=True, help="vocab.txt, uncased")
    parser.add_argument("--reference-documents", type=int, default=40, help="documents for the plain builder")
    parser.add_argument("--mask-unit", default="token", choices=("token", "word", "span"), help="of the job")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2], choices=RUNS)
    return parser.parse_args()


def time_reference(path: str, vocab: str, count: int) -> tuple[int, float, float]:
    """Return (instances, seconds, processor seconds) of the plain builder on the first documents of a file."""
    documents = islice(read_documents(path, ReadingRule()), count)
    text = "\n\n".join("\n".join(document.sentences) for document in documents)
    vocabulary = {piece: number for number, piece in enumerate(read_vocabulary(vocab))}
    settings = reference_builder.Settings()
    before, cpu_before = time.perf_counter(), time.process_time()
    tokenized = reference_builder.read_documents(text, vocabulary)
    instances = reference_builder.build_instances(tokenized, vocabulary, settings, random.Random(1))
    with tempfile.TemporaryFile() as file:
        for instance in instances:
            file.write(reference_builder.serialise(instance, vocabulary, settings))
    return len(instances), time.perf_counter() - before, time.process_time() - cpu_before


def time_job(path: str, vocab: str, options: list[str]) -> tuple[int, float, float]:
    """Return (instances, seconds, processor seconds) of `kbf records` on a file."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "records"
        command = [sys.executable, "-m", "keras_bert_flow", "records", "--input", path, "--vocab", vocab]
        command += ["--output", str(output), "--duplication", "5", *options]
        before, cpu_before = time.perf_counter(), children_seconds()
        subprocess.run(command, check=True, capture_output=True)
        seconds, cpu_seconds = time.perf_counter() - before, children_seconds() - cpu_before
        counters = read_manifest(output).counters
    return counters["instances_train"] + counters.get("instances_held_out", 0), seconds, cpu_seconds


def print_row(name: str, processes: int, instances: int, seconds: float, cpu_seconds: float, reference: float) -> None:
    rate = instances / seconds
    row = (name, f"{processes}", f"{instances:,}", f"{seconds:.1f}", f"{cpu_seconds:.1f}", f"{rate:,.0f}")
    print("| " + " | ".join((*row, f"{rate / reference:.1f}", f"{rate / PUBLISHED:.1f}")) + " |", flush=True)


def main() -> None:
    arguments = parse_arguments()
    print("| " + " | ".join(HEADER) + " |", "|---|" + "---:|" * (len(HEADER) - 1), sep="\n", flush=True)
    plain = time_reference(arguments.input, arguments.vocab, arguments.reference_documents)
    reference = plain[0] / plain[1]
    print_row("plain Python", 1, *plain, reference)
    for workers in arguments.workers:
        options = ["--mask-unit", arguments.mask_unit, *RUNS[workers]]
        timed = time_job(arguments.input, arguments.vocab, options)
        print_row("`kbf records`", workers, *timed, reference)


if __name__ == "__main__":
    main()
