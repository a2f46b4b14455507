"""Print the peak memory of the steps around the engine's shuffle, by how many groups they are handed, as a table.

    python -m benchmarks.exchange_memory --vocab vocab.txt

Beam's local runner hands a worker all of a step's input in one message, so its workers do not show what the steps
themselves hold. Here the functions of each step are called in a process of its own, one bundle with so many groups from
a generator, as an engine hands them over, and what they emit is dropped. The peak is the process's high-water mark of
resident memory (VmHWM); ru_maxrss would count who started it. The first row is the base: modules and tokenizer.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np

from beam_jobs.build_records import PART_BYTES, ShardPlan, deal_records, find_part, join_parts, write_part
from beam_jobs.build_vocabulary import CountInBundles, add_counts, name_counts, place_count
from beam_jobs.exchange import DivideItems, Items, UseGroup
from beam_jobs.instances import (
    BuildRecords,
    CorpusSize,
    RecordRule,
    TokenizeDocuments,
    count_distinct,
    find_id_group,
    find_pool,
    measure_documents,
    place_documents,
    read_pools,
)
from beam_jobs.sorted_runs import Packer
from benchmarks.memory import peak_of
from keras_bert_flow.config.text import RecordsConfig
from keras_bert_flow.text.objectives.objective import find_objective
from keras_bert_flow.text.tokenizers.files import read_tokenizer_file
from keras_bert_flow.text.tokenizers.learning import WordPieceWords

ROOT = Path(__file__).parents[1]
RECORD_BYTES = 800  # of 128 tokens and 20 predictions
LINE_WORDS, DOCUMENT_LINES, BATCH_DOCUMENTS, POOL_DOCUMENTS = 20, 15, 32, 64
WORDS_A_GROUP, COUNTS_A_WORD = 5_000, 8
PLAN = ShardPlan(shards=1, parts=2, held_out_parts=1)
SIZE = CorpusSize(documents=100_000, text_bytes=200_000_000, instances=500_000_000)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vocab", required=True, help="vocab.txt")
    parser.add_argument("--steps", nargs="+", default=tuple(STEPS), choices=tuple(STEPS))
    parser.add_argument("--times", nargs="+", type=int, default=(1, 10), help="how often a step's groups are handed")
    parser.add_argument("--part-bytes", type=int, default=PART_BYTES, help="of a group of records")
    return parser.parse_args()


def drop(elements: Iterable) -> None:
    """Take each element and hold none."""
    deque(elements, maxlen=0)


def make_texts(count: int, vocab: str) -> Iterator[list[list[str]]]:
    """Yield batches of documents, all different, of words of a vocabulary."""
    rng = np.random.default_rng(0)
    words = [word for word in Path(vocab).read_text(encoding="utf-8").split() if word.isalpha()]
    for _ in range(count):
        yield [
            [" ".join(words[one] for one in rng.integers(0, len(words), LINE_WORDS)) for _ in range(DOCUMENT_LINES)]
            for _ in range(BATCH_DOCUMENTS)
        ]


def tokenize(times: int, vocab: str, rule: RecordRule) -> Iterator[list[bytes]]:
    step = TokenizeDocuments(rule.tokenizer, split_lines=False)
    step.start_bundle()
    for texts in make_texts(times, vocab):
        yield from step.process(texts)
    drop(step.finish_bundle())


def divide(find_group: Callable[..., bytes], *arguments: Any) -> Callable[[Iterable[Items]], None]:
    """Return a function that divides items into groups, packs them as for the shuffle, and drops them."""
    step = DivideItems(find_group)
    step.setup()
    step.start_bundle()
    return lambda pairs: drop(element for pair in pairs for element in step.process(pair, *arguments))


def use(key: bytes, parts: Iterable[list[bytes]], function: Callable[..., Iterable], *arguments: Any) -> Iterable:
    """Call the step after the shuffle with a group."""
    step = UseGroup(function)
    step.setup()
    return step.process((key, map(Packer().pack, parts)), *arguments)


def run_documents(times: int, vocab: str, rule: RecordRule, folder: Path, part_bytes: int) -> None:
    """Documents to token ids, their sizes, and the groups of their pools."""
    estimate = find_objective(rule.config.objective).estimate_instances(128, 0.1)
    divide_ids, divide_pools = divide(find_id_group), divide(find_pool)
    for batch in tokenize(200 * times, vocab, rule):
        divide_ids(measure_documents(batch, estimate))
        divide_pools(place_documents(batch, SIZE, 0.1, 1))


def run_pools(times: int, vocab: str, rule: RecordRule, folder: Path, part_bytes: int) -> None:
    """Pools of documents to records, and the groups of their parts of a shard."""
    build = BuildRecords(rule)
    build.start_bundle()
    divide_records = divide(find_part, PLAN, "")

    def deal(built: Iterable) -> None:
        for element in built:
            if isinstance(element, beam.pvalue.TaggedOutput):  # a counter
                continue
            divide_records(deal_records(getattr(element, "value", element), PLAN, 1))

    for number in range(10 * times):
        batches = tokenize(POOL_DOCUMENTS // BATCH_DOCUMENTS, vocab, rule)  # the same text for each: of its own pool
        parts = [[_name_pool(number) + document for document in batch] for batch in batches]
        for pool in use(_name_bucket(0), parts, read_pools):
            deal(build.process(pool))
    deal(build.finish_bundle())


def run_parts(times: int, vocab: str, rule: RecordRule, folder: Path, part_bytes: int) -> None:
    """Records of a part to a sorted file, and all parts to one shard."""
    written = []
    for number in range(times):
        batches = (_random_records(100, number) for _ in range(part_bytes // (100 * (RECORD_BYTES + 8))))
        written += use(_name_bucket(0) + bytes([number]), batches, write_part, PLAN, str(folder))
    if written:
        drop(join_parts((0, [part for _, part in written]), PLAN, str(folder)))


def run_ids(times: int, vocab: str, rule: RecordRule, folder: Path, part_bytes: int) -> None:
    """Ids and sizes of documents to how many distinct ones there are."""
    for _ in range(20 * times):
        drop(use(_name_bucket(0), ([os.urandom(36) for _ in range(100)] for _ in range(100)), count_distinct))


def run_words(times: int, vocab: str, rule: RecordRule, folder: Path, part_bytes: int) -> None:
    """Texts to the counts of their words."""
    step = CountInBundles(WordPieceWords(cased=False))
    step.start_bundle()
    for texts in make_texts(20 * times, vocab):
        for counted in step.process(texts):
            drop(name_counts(counted))
    drop(step.finish_bundle())


def run_counts(times: int, vocab: str, rule: RecordRule, folder: Path, part_bytes: int) -> None:
    """Counts of the words of a bucket to a file of their sums."""
    for number in range(5 * times):
        counts = (
            [place_count(b"word%d" % word, 1 + again)[1][0] for word in range(WORDS_A_GROUP)]
            for again in range(COUNTS_A_WORD)
        )
        drop(use(_name_bucket(number), counts, add_counts, str(folder)))


STEPS: dict[str, Callable[[int, str, RecordRule, Path, int], None]] = {
    "documents": run_documents,
    "ids": run_ids,
    "pools": run_pools,
    "parts": run_parts,
    "words": run_words,
    "counts": run_counts,
}


def _name_bucket(number: int) -> bytes:
    return number.to_bytes(8, "big")


def _name_pool(number: int) -> bytes:
    return b"\0" + number.to_bytes(8, "big")


def _random_records(count: int, part: int) -> list[bytes]:
    """Return records behind their places in a part of a shard."""
    size = RECORD_BYTES + 7
    content = os.urandom(count * size)
    return [bytes([part]) + content[at : at + size] for at in range(0, count * size, size)]


def run_step(step: str, times: int, vocab: str, part_bytes: int) -> int:
    """Run a step in this process, and return its peak of resident memory in bytes."""
    rule = RecordRule(RecordsConfig(), read_tokenizer_file(vocab, False), 1)
    with tempfile.TemporaryDirectory() as folder:
        STEPS[step](times, vocab, rule, Path(folder), part_bytes)
    return peak_of(os.getpid())[1]


def measure_step(step: str, times: int, vocab: str, part_bytes: int = PART_BYTES) -> int:
    """Run a step in a process of its own, and return its peak of resident memory in bytes."""
    code = f"from benchmarks import exchange_memory as m; print(m.run_step({step!r}, {times}, {vocab!r}, {part_bytes}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return int(done.stdout)


def main() -> None:
    arguments = parse_arguments()
    print("| step | groups, times | peak, MB | above the base, MB |", "|---|---:|---:|---:|", sep="\n", flush=True)
    base = measure_step(arguments.steps[0], 0, arguments.vocab)
    print(f"| none | 0 | {base / 1e6:.0f} | 0 |", flush=True)
    for step in arguments.steps:
        for times in arguments.times:
            peak = measure_step(step, times, arguments.vocab, arguments.part_bytes)
            print(f"| `{step}` | {times} | {peak / 1e6:.0f} | {(peak - base) / 1e6:.0f} |", flush=True)


if __name__ == "__main__":
    main()
