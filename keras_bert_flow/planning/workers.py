"""Choose the number of Beam worker processes for counting words or making records, from the size of the text.

A worker process takes about a second to start, most of it importing Apache Beam, so a small job is faster without any.
Results of `benchmarks/workers.py --megabytes 10` on two cores of an otherwise idle Sapphire Rapids processor, in
seconds and CPU seconds:

    job                       one process     two workers
    records, duplication 1    4.3    4.1      4.9    6.6
    records, duplication 5    5.8    5.5      5.6    7.9
    vocab                     5.7    5.6      6.5    7.7

So each pass over a megabyte takes 0.04 s, and reading and encoding it 0.25 s, since the command itself takes 1.6 s. Two
workers cost 2.1 to 2.5 s and halve the rest of the work, so they pay off once the work of one process exceeds twice
their cost. Counting words takes 0.08 s per megabyte (`vocab` in docs/beam.md); a single process then learns the
vocabulary from the counts.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from keras_bert_flow.config.corpus import CorpusConfig
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.config.records import RecordsConfig
from keras_bert_flow.planning.corpus_sample import measure_bytes
from keras_bert_flow.text.corpus.inputs import DAMAGED_ERRORS, find_inputs
from keras_bert_flow.text.corpus.storage import is_remote

ENCODE_SECONDS, PASS_SECONDS, COUNT_SECONDS = 0.25, 0.04, 0.08  # per megabyte of text
WORKER_SECONDS = 2.5  # of work per process; from about 1.5 on, two processes are not slower than one
WORKER_BYTES = 400_000_000  # memory per process; docs/beam.md reports 256 MB
MOST_WORKERS = 8
# Options with which the user chooses the workers.
CHOICES = ("--runner", "--direct_num_workers", "--direct_running_mode")
_CGROUP = Path("/sys/fs/cgroup")


def worker_options(
    corpus: CorpusConfig, records: RecordsConfig | None, options: Sequence[str], cores: int | None = None
) -> tuple[str, ...]:
    """Return Beam's options, with a number of worker processes added if several pay off and the user chose none.

    Args:
        corpus: the text; with remote files, whose size is not known, the options stay unchanged.
        records: settings of the records to make; None: words are counted.
        options: the user's options.
        cores: number of cores to use; None: all that this process may use.
    """
    if _is_chosen(corpus, options):
        return tuple(options)
    seconds = estimate_seconds(text_bytes(corpus), records)
    workers = choose_workers(seconds, count_cores() if cores is None else cores, available_memory())
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
    counts = ", ".join(
        f"{name} {choose_workers(estimate_seconds(size, records), cores, memory)}" for name, records in jobs
    )
    return [f"Processes of the data jobs, from the size of the text: {counts}."]


def estimate_seconds(size: float, records: RecordsConfig | None) -> float:
    """Return the seconds of work for one core on `size` bytes of text, without the fixed cost of a job."""
    if records is None:
        return size / 1e6 * COUNT_SECONDS
    return size / 1e6 * (ENCODE_SECONDS + PASS_SECONDS * records.duplication)


def choose_workers(seconds: float, cores: int, memory: float) -> int:
    """Return the number of worker processes for an amount of work; 1 means the main process only.

    Args:
        seconds: seconds of work for one core.
        cores: number of available cores.
        memory: bytes of free memory.
    """
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
