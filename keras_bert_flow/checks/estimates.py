"""Estimate records, steps, time and workers of a run from a sample of its text."""

import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.config.text import CorpusConfig, RecordsConfig, VocabularyConfig
from keras_bert_flow.models.sizes import count_flops, resolve_shape
from keras_bert_flow.text.corpus.documents import Document, ReadingRule, read_documents
from keras_bert_flow.text.corpus.inputs import (
    DAMAGED_ERRORS,
    PACKED_SUFFIXES,
    PARQUET,
    find_inputs,
    is_remote,
    open_input,
    open_packed,
    unpack,
)
from keras_bert_flow.text.corpus.parquet import list_chunks, open_table
from keras_bert_flow.text.masking import MaskingRule, count_masks
from keras_bert_flow.text.objectives.mlm import count_sequences
from keras_bert_flow.text.objectives.objective import InstanceRule, build_instances, find_objective
from keras_bert_flow.text.rows import TokenizedDocument
from keras_bert_flow.text.tokenizers.files import read_tokenizer_file
from keras_bert_flow.text.tokenizers.learning import choose_words, learn_tokenizer
from keras_bert_flow.text.tokenizers.tokenizer import Tokenizer, count_lost, describe_lost

# Stop reading a corpus after a number of bytes, even within a document.


class EnoughError(Exception):
    """The limit of bytes to read has been exceeded."""


class LimitedCounts(Counter):
    """Counts for `read_documents` that raise EnoughError when more than `most_bytes` bytes have been read."""

    def __init__(self, most_bytes: int):
        super().__init__()
        self._most_bytes = most_bytes

    def __setitem__(self, name, value):
        super().__setitem__(name, value)
        if name == "bytes_read" and value > self._most_bytes:
            raise EnoughError


# Read a sample of a corpus, and estimate the uncompressed size of the whole.

SAMPLE_BYTES = 1_000_000
MOST_FILES = 16  # maximum number of files sampled
LEAST_FILES = 8  # with this many files sampled or more, each may provide at most 1/8 of the bytes
PACKED_SAMPLE_BYTES = 2_000_000


@dataclass(frozen=True)
class CorpusSample:
    """Sampled documents of a corpus, without duplicates.

    Attributes:
        read_bytes: bytes of the files up to the ends of these documents.
        total_bytes: uncompressed bytes of all files.
    """

    documents: tuple[Document, ...]
    read_bytes: int
    total_bytes: float


def read_sample(corpus: CorpusConfig, files: Sequence[str]) -> CorpusSample:
    """Read the beginnings of evenly spaced files; the sample is empty if their first documents are too long."""
    rule = ReadingRule(corpus.text_field, corpus.lines == "paragraphs", corpus.max_line_bytes)
    chosen = files[:: -(-len(files) // MOST_FILES)]
    documents: dict[str, Document] = {}
    read_bytes = 0
    for path in chosen:
        counts = LimitedCounts(SAMPLE_BYTES // min(LEAST_FILES, len(chosen)))
        end = 0
        try:
            for document in read_documents(path, rule, counts):
                documents[document.id] = document
                end = counts["bytes_read"]
            end = counts["bytes_read"]
        except EnoughError:
            pass
        read_bytes += end
    return CorpusSample(tuple(documents.values()), read_bytes, measure_bytes(corpus, files))


def measure_bytes(corpus: CorpusConfig, files: Sequence[str]) -> float:
    """Return the uncompressed size of files in bytes; for Parquet files, the size of the text column.

    The compression ratio is estimated from the beginning of the largest file with the same compression. A damaged
    Parquet file counts with its size on disk.
    """
    sizes = {path: Path(path).stat().st_size for path in files}
    total = 0.0
    for suffix in (*PACKED_SUFFIXES, PARQUET, ""):
        found = [path for path in sizes if path.endswith(suffix)]
        size = sum(sizes.pop(path) for path in found)
        if suffix == PARQUET:
            for path in found:
                try:
                    with open_input(path) as file:
                        open_table(file, path, corpus.text_field)
                        total += sum(chunk.unpacked for chunk in list_chunks(file, path, corpus.text_field))
                except DAMAGED_ERRORS:
                    total += Path(path).stat().st_size
        elif found and suffix:
            unpacked, largest = 0, max(found, key=lambda path: Path(path).stat().st_size)
            with open_packed(largest) as packed, unpack(packed, suffix) as file:
                with suppress(*DAMAGED_ERRORS):  # up to the damage
                    while unpacked < PACKED_SAMPLE_BYTES and (piece := file.read(1 << 16)):
                        unpacked += len(piece)
                total += size * (unpacked / max(1, packed.tell()))
        else:
            total += size
    return total


MATRIX_WIDTH = 1024  # of the timed matrix product
TIMED_SECONDS, TIMINGS = 0.1, 10  # the best of several: what the machine does when nothing else runs


@dataclass(frozen=True)
class CorpusEstimate:
    """Estimated number of tokens in a corpus, from a sample.

    Attributes:
        sample: the sampled documents.
        tokenized: the same documents as token ids.
        tokens: estimated number of tokens in the whole corpus.
        basis: description of what the numbers are derived from.
        lost: counters of the characters of the sample that the tokenizer loses; see `tokenizer.LOST`.
    """

    sample: CorpusSample
    tokenized: tuple[TokenizedDocument, ...]
    tokenizer: Tokenizer
    tokens: float
    basis: str
    lost: Mapping[str, int]


def estimate_corpus(config: PipelineConfig, files: Sequence[str], vocabulary: Path | None) -> CorpusEstimate | None:
    """Tokenize a sample of a corpus and estimate the total; None if its first documents are too long to sample.

    Args:
        vocabulary: tokenizer file; if None, a vocabulary is learnt from the sample.
    Raises:
        ValueError: the vocabulary has no room for the characters of the sample.
    """
    sample = read_sample(config.corpus, files)
    texts = [sentence for document in sample.documents for sentence in document.sentences]
    if not texts:
        return None
    cased = config.vocabulary.cased
    tokenizer = read_tokenizer_file(vocabulary, cased) if vocabulary else _learn_tokenizer(texts, config.vocabulary)
    tokenized = []
    for document in sample.documents:
        sentences = [ids for ids in tokenizer.encode_batch(document.sentences) if len(ids)]
        if sentences:
            lengths = np.array([len(ids) for ids in sentences], np.int32)
            tokenized.append(TokenizedDocument(document.id, np.concatenate(sentences).astype(np.int32), lengths))
    tokens = sum(len(document.token_ids) for document in tokenized) * sample.total_bytes / sample.read_bytes
    source = vocabulary or "a vocabulary learnt from it"
    basis = f"{len(sample.documents):,} documents, {sample.read_bytes / 1e6:.2f} MB, encoded with {source}"
    lost: Counter = Counter()
    for text in texts:
        lost.update(count_lost(tokenizer, text))
    return CorpusEstimate(sample, tuple(tokenized), tokenizer, tokens, basis, lost)


def count_records(config: PipelineConfig, estimate: CorpusEstimate) -> float:
    """Return the estimated number of training records from a corpus, scaled up from the sample."""
    records, tokenizer = config.records, estimate.tokenizer
    rule = InstanceRule(
        records.objective,
        records.sequence_length,
        records.short_fraction,
        tokenizer.cls_id,
        tokenizer.sep_id,
        MaskingRule.of(tokenizer, records.masked_fraction, records.max_predictions, records.mask_unit),
        records.packing,
    )
    made = build_instances(estimate.tokenized, 1, rule, config.seed)
    count = sum(len(instances.rows.lengths) for instances in made)
    share = estimate.sample.total_bytes / estimate.sample.read_bytes
    return count * share * (1 - records.held_out_fraction) * records.duplication


def estimate_pretraining(config: PipelineConfig, estimate: CorpusEstimate | None) -> list[str]:
    """Return lines on the tokens, records, steps and time of each phase; `estimate` is None if unavailable."""
    lines, total = [], 0.0
    if estimate is not None:
        lines.append(f"Tokens: about {estimate.tokens:,.0f} ({estimate.basis}).")
        lines += [f"Lost: {line}" for line in describe_lost(estimate.lost, "the sample")]
    trained = [] if config.has_own_teacher else [("Pre-training", phase) for phase in config.phases]
    trained += [("Distillation", config.student)] if config.distillation else []
    for title, phase in trained:
        records, training = phase.records, phase.pretraining
        operations = training.total_steps * training.batch_size * _count_flops(phase)
        if title == "Distillation" and not config.has_own_teacher:
            operations += training.total_steps * training.batch_size * _count_flops(config.phases[-1], is_teacher=True)
        total += operations
        passes = ""
        if estimate is not None:
            count = count_records(phase, estimate)
            length = training.sequence_length or records.sequence_length
            sequences = count * count_sequences(records.sequence_length, length)
            share = training.total_steps * training.batch_size / max(1.0, sequences)
            passes = f" about {share:,.1f} passes over the records,"
            if title != "Distillation" or config.has_own_teacher:  # else it uses the records of the previous phase
                lines.append(f"Records: about {count:,.0f} of {records.sequence_length} tokens, from the same sample.")
        lines.append(
            f"{title}: {training.total_steps:,} steps of {training.batch_size} sequences,{passes} "
            f"{operations:.3g} floating-point operations."
        )
    return [*lines, _estimate_time(total, config.pretraining.peak_flops)]


def _learn_tokenizer(texts: Iterable[str], vocabulary: VocabularyConfig) -> Tokenizer:
    words = choose_words(vocabulary)
    return learn_tokenizer(Counter(word for text in texts for word in words(text)), vocabulary)


def estimate_finetuning(config: PipelineConfig, examples: int) -> list[str]:
    """Return lines on the steps of fine-tuning, counting one row per example; long texts may take several."""
    settings, lines = config.finetuning, []
    if config.augmentation is not None:
        rows, examples = examples, examples * (1 + config.augmentation.copies)
        lines.append(f"Augmentation: {rows:,} training rows become at most {examples:,}.")
    runs, steps_per_epoch = len(settings.seeds), -(-examples // settings.batch_size)
    steps, most = steps_per_epoch * settings.epochs, steps_per_epoch * max(settings.epochs, settings.random_max_epochs)
    random = f" and at most {most:,} in each of {runs} from random weights" if settings.compare_random else ""
    extras = [name for name, value in (("A grid", settings.grid), ("Fewer labels", settings.label_counts)) if value]
    grid = "".join(f" {name} come{'s' if name == 'A grid' else ''} on top." for name in extras)
    layers = f"{steps_per_epoch * settings.layer_epochs:,} of layers and " if settings.layer_epochs else ""
    return [
        *lines,
        f"Fine-tuning: {examples:,} examples, {layers}{steps:,} steps of {settings.batch_size} in each of {runs} runs"
        f"{random}, where each example is one row.{grid}",
    ]


def measure_rate() -> float:
    """Measure the FLOP/s of float32 matrix products in NumPy on this processor, at its best moment."""
    matrix, rates = np.ones((MATRIX_WIDTH, MATRIX_WIDTH), np.float32), []
    matrix @ matrix  # starts the threads
    for _ in range(TIMINGS):
        started, products = time.perf_counter(), 0
        while (elapsed := time.perf_counter() - started) < TIMED_SECONDS:
            matrix @ matrix
            products += 1
        rates.append(products * 2 * MATRIX_WIDTH**3 / elapsed)
    return max(rates)


def _estimate_time(operations: float, peak_flops: float | None) -> str:
    rate = measure_rate() if peak_flops is None else peak_flops
    seconds = operations / rate
    units = {"days": 86400, "hours": 3600, "minutes": 60}
    spelt = (f"{seconds / length:,.1f} {unit}" for unit, length in units.items() if seconds >= 2 * length)
    least = f"Time of pre-training: at least {next(spelt, f'{seconds:,.0f} seconds')}"
    if peak_flops is not None:
        return f"{least} at pretraining.peak_flops."
    return (
        f"{least} on this machine's processor, where numpy now multiplies float32 matrices at {rate / 1e9:,.0f} "
        "GFLOP/s. For an accelerator set pretraining.peak_flops."
    )


def count_pieces(config: PipelineConfig) -> int:
    """Return the size of the vocabulary that a configuration gives or learns."""
    file = config.vocabulary.file
    return read_tokenizer_file(file).vocabulary_size if file else config.vocabulary.size


def find_batch_widths(config: PipelineConfig) -> tuple[int, int]:
    """Return the tokens and the predictions of a row in a phase of pre-training."""
    records, settings = config.records, config.pretraining
    length, share = settings.sequence_length or records.sequence_length, settings.most_masked
    if share is None and length < records.sequence_length:
        share = records.masked_fraction
    return length, records.max_predictions if share is None else count_masks(length, share)


def _count_flops(config: PipelineConfig, is_teacher: bool = False) -> int:
    """Return the FLOPs of one sequence in training, or of the forward pass alone for a teacher."""
    records = config.records
    shape = resolve_shape(config.model, count_pieces(config))
    length, masks = find_batch_widths(config)
    objective = find_objective(records.objective)
    flops = count_flops(
        shape,
        length,
        masks,
        use_pooler=objective.has_pairs,
        bag_of_words=config.pretraining.bag_of_words > 0,
        generator=shape.narrow(config.pretraining.generator_size) if objective.has_generator else None,
        span_boundary=objective.has_spans,
    )
    return flops.forward if is_teacher else flops.training


# Choose the number of Beam worker processes for counting words or making records, from the size of the text.
#
# A worker process takes about a second to start, most of it importing Apache Beam, so a small job is faster without
# any. Results of `benchmarks/workers.py --megabytes 10` on two cores of an otherwise idle Sapphire Rapids processor, in
# seconds and CPU seconds:
#
#     job                       one process     two workers
#     records, duplication 1    4.3    4.1      4.9    6.6
#     records, duplication 5    5.8    5.5      5.6    7.9
#     vocab                     5.7    5.6      6.5    7.7
#
# So each pass over a megabyte takes 0.04 s, and reading and encoding it 0.25 s, since the command itself takes 1.6 s.
# Two workers cost 2.1 to 2.5 s and halve the rest of the work, so they pay off once the work of one process exceeds
# twice their cost. Counting words takes 0.08 s per megabyte (`vocab` in docs/beam.md); a single process then learns the
# vocabulary from the counts.

ENCODE_SECONDS, PASS_SECONDS, COUNT_SECONDS = 0.25, 0.04, 0.08  # per megabyte of text
WORKER_SECONDS = 2.5  # of work per process; from about 1.5 on, two processes are not slower than one
WORKER_BYTES = 400_000_000  # memory per process; docs/beam.md reports 256 MB
MOST_WORKERS = 8
# Options with which the user chooses the workers.
CHOICES = ("--runner", "--direct_num_workers", "--direct_running_mode")
_CGROUP = Path("/sys/fs/cgroup")


def worker_options(corpus: CorpusConfig, records: RecordsConfig | None, options: Sequence[str]) -> tuple[str, ...]:
    """Return Beam's options, with a number of worker processes added if several pay off and the user chose none.

    Args:
        corpus: the text; with remote files, whose size is not known, the options stay unchanged.
        records: settings of the records to make; None: words are counted.
        options: the user's options.
    """
    if _is_chosen(corpus, options):
        return tuple(options)
    workers = choose_workers(text_bytes(corpus), records, count_cores(), available_memory())
    if workers == 1:
        return tuple(options)
    return (*options, f"--direct_num_workers={workers}", "--direct_running_mode=multi_processing")


def describe_workers(config: PipelineConfig, files: Sequence[str]) -> list[str]:
    """Return a line on the worker processes of each data job; empty if the user chose them or the text is remote."""
    if not files or _is_chosen(config.corpus, config.beam):
        return []
    jobs: list[tuple[str, RecordsConfig | None]] = [] if config.vocabulary.file else [("vocabulary", None)]
    jobs += [("records", phase.records) for phase in config.phases]
    size, cores, memory = text_bytes(config.corpus), count_cores(), available_memory()
    counts = ", ".join(f"{name} {choose_workers(size, records, cores, memory)}" for name, records in jobs)
    return [f"Processes of the data jobs, from the size of the text: {counts}."]


def choose_workers(size: float, records: RecordsConfig | None, cores: int, memory: float) -> int:
    """Return the number of worker processes for a job; 1 means the main process only.

    Args:
        size: bytes of text.
        records: settings of the records to make; None: words are counted.
        cores: number of available cores.
        memory: bytes of free memory.
    """
    per_megabyte = COUNT_SECONDS if records is None else ENCODE_SECONDS + PASS_SECONDS * records.duplication
    seconds = size / 1e6 * per_megabyte  # of one core, without the fixed cost of a job
    return max(1, int(min(seconds / WORKER_SECONDS, cores, memory / WORKER_BYTES, MOST_WORKERS)))


def text_bytes(corpus: CorpusConfig) -> float:
    """Return the approximate uncompressed size in bytes of a local corpus.

    Raises:
        FileNotFoundError, ValueError: as for `find_inputs`.
    """
    files = find_inputs(corpus.input)
    with suppress(*DAMAGED_ERRORS):  # a file that cannot be opened; the job reports it
        return measure_bytes(corpus, files)
    return float(sum(os.path.getsize(path) for path in files if os.path.exists(path)))


def count_cores(cgroup: Path = _CGROUP) -> int:
    """Return the number of cores this process may use, by its CPU affinity and its cgroup v2 limit."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _read(cgroup / "cpu.max").split()
    if len(quota) == 2 and quota[0] != "max":
        cores = min(cores, int(quota[0]) // int(quota[1]))
    return max(1, cores)


def available_memory(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = _CGROUP) -> float:
    """Return the bytes of memory available to new processes; infinity if the system does not report it."""
    lines = (line.partition(":") for line in _read(meminfo).splitlines())
    facts: Mapping[str, str] = {name: value for name, _, value in lines}
    free = int(facts["MemAvailable"].split()[0]) * 1024.0 if "MemAvailable" in facts else float("inf")
    limit, used = _read(cgroup / "memory.max").strip(), _read(cgroup / "memory.current").strip()
    if limit.isdecimal() and used.isdecimal():
        free = min(free, max(0.0, float(limit) - float(used)))
    return free


def _is_chosen(corpus: CorpusConfig, options: Sequence[str]) -> bool:
    return any(option.partition("=")[0] in CHOICES for option in options) or any(map(is_remote, corpus.input))


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
