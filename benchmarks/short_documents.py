"""Print what a text costs as many short documents, beside the same text as few long ones, as a Markdown table.

    python benchmarks/short_documents.py --input wiki_en_train.txt --vocab vocab.txt

The sentences of the text are written as documents of 100 and of 1 sentence. Processor seconds are those of the whole
command, the start of Python included; the peak is the high-water mark of resident memory (VmHWM) of its one process.
A one-sentence document can only be paired with a random other one, so `mlm_nsp` makes more records of short documents,
each mostly padding; `mlm` fills records over the borders of documents and makes about as many. "Times more records" and
"times a record", the processor seconds of one record compared, tell what of it is the price of more records.
"""

import argparse
import sys
import tempfile
from itertools import islice
from pathlib import Path

from memory import measure  # the script beside this one
from records import children_seconds

from keras_bert_flow.results.manifest import read_manifest
from keras_bert_flow.text.corpus.documents import ReadingRule, read_documents

LONG, SHORT = 100, 1  # sentences of a document


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--input", required=True, help="a file of text, with blank lines between documents")
    parser.add_argument("--vocab", required=True, help="vocab.txt")
    parser.add_argument("--sentences", type=int, default=100_000, help="of the text, the first ones")
    parser.add_argument("--rounds", type=int, default=2, help="the least of so many runs is printed")
    parser.add_argument("--timeout-seconds", type=float, default=600)
    return parser.parse_args()


def write_documents(sentences: list[str], path: Path, length: int) -> int:
    """Write documents of `length` sentences, one a line, and return how many they are."""
    starts = range(0, len(sentences), length)
    path.write_text("\n\n".join("\n".join(sentences[start : start + length]) for start in starts) + "\n", "utf-8")
    return len(starts)


def run(command: list[str], arguments: argparse.Namespace) -> tuple[float, float, int]:
    """Return (processor seconds, peak MB, training records) of a job, the least of some runs."""
    seconds, peaks, instances = [], [], 0
    for _ in range(arguments.rounds):
        with tempfile.TemporaryDirectory() as folder:
            before = children_seconds()
            _, peak = measure([*command, "--output", f"{folder}/output"], arguments.timeout_seconds)
            seconds.append(children_seconds() - before)
            peaks.append(peak["runner"] / 1e6)
            instances = read_manifest(Path(folder) / "output").counters.get("instances_train", 0)
    return min(seconds), min(peaks), instances


def main() -> None:
    arguments = parse_arguments()
    texts = (document.sentences for document in read_documents(arguments.input, ReadingRule()))
    sentences = list(islice((sentence for text in texts for sentence in text), arguments.sentences))
    jobs = {
        "`records`, `mlm_nsp`": ["records", "--vocab", arguments.vocab, "--duplication", "1"],
        "`records`, `mlm`": ["records", "--vocab", arguments.vocab, "--duplication", "1", "--objective", "mlm"],
        "`vocab`": ["vocab", "--size", "8000"],
    }
    header = ("job", "documents", "records", "times more records", "processor seconds", "times", "times a record")
    print("| " + " | ".join([*header, "peak, MB", "times"]) + " |", flush=True)
    print("|---|" + "---:|" * 8, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for name, job in jobs.items():
            first = None
            for length in (LONG, SHORT):
                path = Path(folder) / f"{length}.txt"
                documents = write_documents(sentences, path, length)
                command = [sys.executable, "-m", "keras_bert_flow", *job, "--input", str(path)]
                command += ["--set", "corpus.lines=sentences"]
                seconds, peak, records = run(command, arguments)
                first = first or (seconds, peak, records)
                times, more = seconds / first[0], records / first[2] if records else 1.0
                row = [name, f"{documents:,}", f"{records:,}", f"{more:.2f}", f"{seconds:.1f}", f"{times:.2f}"]
                row.append(f"{times / more:.2f}")
                print("| " + " | ".join([*row, f"{peak:.0f}", f"{peak / first[1]:.2f}"]) + " |", flush=True)


if __name__ == "__main__":
    main()
