"""Say how far a command is whose work is done elsewhere, and what it has written of its result so far."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from keras_bert_flow.config.corpus import CorpusConfig
from keras_bert_flow.job_progress import MB, expect, following_job
from keras_bert_flow.local_paths import find_address
from keras_bert_flow.outputs import work_folder
from keras_bert_flow.progress import working

LEAST_BYTES = 50_000  # less is shown as 0.0 MB


@contextmanager
def following(name: str, output: str | Path | None = None) -> Iterator[None]:
    """Say what is being done, as `working` does, and how far it is: the part at hand, or what has been written."""
    measure = written_to(output)
    with following_job() as job, working(name, lambda: job.describe() or measure()):
        yield


def expect_text(corpus: CorpusConfig) -> None:
    """Tell how much text a job has to read, where it lies on this machine."""
    from keras_bert_flow.planning.corpus_sample import measure_bytes
    from keras_bert_flow.text.corpus.inputs import find_inputs

    if not any(map(find_address, corpus.input)):
        expect(MB, measure_bytes(corpus, find_inputs(corpus.input)) / 1e6)


def written_to(output: str | Path | None) -> Callable[[], str]:
    """Return a function that says how much there is in the folder that an output on this disk is built in."""
    work = None if output is None or find_address(output) else work_folder(output)

    def measure() -> str:
        size = 0 if work is None else sum(_size(entry) for entry in work.rglob("*"))
        return f"{size / 1e6:,.1f} MB written" if size >= LEAST_BYTES else ""

    return measure


def _size(path: Path) -> int:
    try:
        status = os.lstat(path)
    except OSError:  # renamed or removed meanwhile
        return 0
    return status.st_size if path.is_file() else 0
