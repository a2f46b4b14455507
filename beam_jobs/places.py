"""Where workers write the files that a job publishes: a shared folder, an object store or HDFS.

A file appears under its name only when complete: to a remote place it is uploaded from a disk of the worker.
"""

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from beam_jobs.remote_files import give_names, open_remote, upload
from keras_bert_flow.text.corpus.storage import is_remote

_ATTEMPTS = "attempts"  # holds a folder for the files of each attempt at a step


@contextmanager
def new_place(folder: str) -> Iterator[tuple[Path, str]]:
    """Yield a new local folder to write to, and the address from which others then read the files."""
    place = f"{folder}/{_ATTEMPTS}/{uuid.uuid4().hex}"
    if not is_remote(folder):
        Path(place).parent.mkdir(exist_ok=True)  # fails if the job's folder is gone, and with it the job
        Path(place).mkdir()
        yield Path(place), place
        return
    with tempfile.TemporaryDirectory() as local:
        yield Path(local), place
        for path in sorted(Path(local).iterdir()):
            upload(path, f"{place}/{path.name}")


@contextmanager
def fetched(place: str, *names: str) -> Iterator[Path]:
    """Yield a local folder with files of a place, downloaded if it is remote."""
    if not is_remote(place):
        yield Path(place)
        return
    with tempfile.TemporaryDirectory() as local:
        for name in names:
            with open_bytes(f"{place}/{name}") as source, open(Path(local) / name, "wb") as target:
                shutil.copyfileobj(source, target)
        yield Path(local)


def put(pairs: Mapping[str, str]) -> None:
    """Link files to second names; a disk without hard links, or an object store, copies them, and HDFS renames them.

    Raises:
        OSError: a file could not be copied or renamed.
    """
    elsewhere = {source: target for source, target in pairs.items() if is_remote(target)}
    give_names(elsewhere)
    for source, target in pairs.items():
        if source not in elsewhere:
            _link(source, target)


def _link(source: str, target: str) -> None:
    unfinished = Path(target).with_name(f".{uuid.uuid4().hex}")
    try:
        os.link(source, unfinished)
    except OSError:
        shutil.copyfile(source, unfinished)
    os.replace(unfinished, target)
    unfinished.unlink(missing_ok=True)  # `os.replace` does nothing if the target is a link to the same file


def open_bytes(path: str) -> BinaryIO:
    """Open a local or remote file for reading."""
    if not is_remote(path):
        return open(path, "rb")
    return open_remote(path)
