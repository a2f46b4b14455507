"""Choose how many worker processes count words or make records on this machine, from the size of the text.

A worker process takes about a second to start, most of it importing Apache Beam, so a small job is faster without any.
`benchmarks/workers.py --megabytes 10` on two cores of a Sapphire Rapids processor that did nothing else, seconds and
processor seconds:

    job                       one process     two workers
    records, duplication 1    4.3    4.1      4.9    6.6
    records, duplication 5    5.8    5.5      5.6    7.9
    vocab                     5.7    5.6      6.5    7.7

So each pass over a megabyte takes 0.04 s, and reading and encoding it 0.25 s, since the command itself takes 1.6 s. Two
workers cost 2.1 to 2.5 s and halve the rest of the work: they gain where one process would work for longer than they
cost. Counting words takes 0.08 s a megabyte (`vocab` in docs/beam.md); one process learns the vocabulary from them.
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

ENCODE_SECONDS, PASS_SECONDS, COUNT_SECONDS = 0.25, 0.04, 0.08  # a megabyte of text
WORKER_SECONDS = 2.5  # of work for each process; from about 1.5 on, two are not slower than one
WORKER_BYTES = 400_000_000  # of memory; docs/beam.md has 233 MB
MOST_WORKERS = 8
# Who names one of these has chosen.
CHOICES = ("--runner", "--direct_num_workers", "--direct_running_mode")
_CGROUP = Path("/sys/fs/cgroup")


def worker_options(
    corpus: CorpusConfig, records: RecordsConfig | None, options: Sequence[str], cores: int | None = None
) -> tuple[str, ...]:
    """Return Beam's options, with the number of worker processes where the user did not choose and several pay.

    Args:
        corpus: the text; files at other places, whose size is not known, leave the options as they are.
        records: how records are made of it; None: words are counted.
        options: those of the user.
        cores: to use; None: those that this process may use.
    """
    if _is_chosen(corpus, options):
        return tuple(options)
    seconds = estimate_seconds(text_bytes(corpus), records)
    workers = choose_workers(seconds, count_cores() if cores is None else cores, available_memory())
    if workers == 1:
        return tuple(options)
    return (*options, f"--direct_num_workers={workers}", "--direct_running_mode=multi_processing")


def describe_workers(config: PipelineConfig, files: Sequence[str]) -> list[str]:
    """Return a line on the worker processes of each data job; none where the user chose or the text is elsewhere."""
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
    """Return the seconds that one core works on so many bytes of text, without what each job takes."""
    if records is None:
        return size / 1e6 * COUNT_SECONDS
    return size / 1e6 * (ENCODE_SECONDS + PASS_SECONDS * records.duplication)


def choose_workers(seconds: float, cores: int, memory: float) -> int:
    """Return the number of worker processes for so much work; 1 is none beside the main process.

    Args:
        seconds: of work for one core.
        cores: that may be used.
        memory: bytes that are free.
    """
    return max(1, int(min(seconds / WORKER_SECONDS, cores, memory / WORKER_BYTES, MOST_WORKERS)))


def text_bytes(corpus: CorpusConfig) -> float:
    """Return about how many bytes of text a corpus on this machine's disks holds, unpacked.

    Raises:
        FileNotFoundError, ValueError: as `find_inputs` does.
    """
    files = find_inputs(corpus.input)
    with suppress(*DAMAGED_ERRORS):  # a file that cannot be opened, of which the job tells
        return measure_bytes(corpus, files)
    return float(sum(os.path.getsize(path) for path in files if os.path.exists(path)))


def count_cores(cgroup: Path = _CGROUP) -> int:
    """Return how many cores this process may use: its affinity, and the limit of its control group (version 2)."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _read(cgroup / "cpu.max").split()
    if len(quota) == 2 and quota[0] != "max":
        cores = min(cores, int(quota[0]) // int(quota[1]))
    return max(1, cores)


def available_memory(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = _CGROUP) -> float:
    """Return the bytes of memory that new processes may take; infinity where the system does not tell."""
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
