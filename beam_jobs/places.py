"""Where workers write what a job publishes: in a folder that they share, or in an object store.

A file is under its name whole or not at all: in an object store it is uploaded from a disk of the worker.
"""

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions

from beam_jobs.storage import make_s3_client
from keras_bert_flow.text.corpus.storage import is_remote

if FileSystems._pipeline_options is None:
    # Beam gives workers of a pool none, and refuses s3:// without; how to reach a store is then in the environment
    FileSystems.set_options(PipelineOptions(flags=[]))

_ATTEMPTS = "attempts"  # folder for what one attempt at a step wrote; a later one has another name


@contextmanager
def new_place(folder: str) -> Iterator[tuple[Path, str]]:
    """Yield a new folder to write into, and the name of what is then to be read by others."""
    place = f"{folder}/{_ATTEMPTS}/{uuid.uuid4().hex}"
    if not is_remote(folder):
        Path(place).parent.mkdir(exist_ok=True)  # where the job's own folder is gone, so is the job, and this fails
        Path(place).mkdir()
        yield Path(place), place
        return
    with tempfile.TemporaryDirectory() as local:
        yield Path(local), place
        for path in sorted(Path(local).iterdir()):
            upload(path, f"{place}/{path.name}")


@contextmanager
def fetched(place: str, *names: str) -> Iterator[Path]:
    """Yield a folder on a disk of this machine with files of a place."""
    if not is_remote(place):
        yield Path(place)
        return
    with tempfile.TemporaryDirectory() as local:
        for name in names:
            with open_bytes(f"{place}/{name}") as source, open(Path(local) / name, "wb") as target:
                shutil.copyfileobj(source, target)
        yield Path(local)


def put(pairs: Mapping[str, str]) -> None:
    """Give files, by their names, second names; where the disk or the store has none, they are copies.

    Raises:
        OSError: one could not be copied.
    """
    elsewhere = {source: target for source, target in pairs.items() if is_remote(target)}
    if elsewhere:
        # At once: each call makes a client of its own. S3's answers with the errors, and does not raise them.
        for _, target, error in FileSystems.copy([*elsewhere], [*elsewhere.values()]) or ():
            if error is not None:
                raise OSError(
                    f"A file must be copied within its store. Received: {target}: {' '.join(str(error).split())}. Run "
                    "the same command again."
                )
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
    unfinished.unlink(missing_ok=True)  # stays where the target already was the same file


def upload(source: Path, target: str) -> None:
    """Copy a file to an object store, where it is to be seen when it is whole."""
    if not source.stat().st_size and FileSystems.get_scheme(target) == "s3":
        _create_empty(target)
        return
    with (
        open(source, "rb") as content,
        FileSystems.create(target, compression_type=CompressionTypes.UNCOMPRESSED) as file,
    ):
        shutil.copyfileobj(content, file)


def _create_empty(target: str) -> None:
    """Create an empty object at s3://, which Beam cannot: it completes an upload in parts, and S3 asks for one."""
    from apache_beam.io.aws.s3io import parse_s3_path  # needs boto3

    bucket, key = parse_s3_path(target)
    make_s3_client(target).put_object(Bucket=bucket, Key=key, Body=b"")


def open_bytes(path: str) -> BinaryIO:
    """Open a file for reading, wherever it is."""
    if not is_remote(path):
        return open(path, "rb")
    return FileSystems.open(path, compression_type=CompressionTypes.UNCOMPRESSED)
