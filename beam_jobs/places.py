"""Where workers write the files that a job publishes: a shared folder, or an object store.

A file appears under its name only when complete: in an object store it is uploaded from a disk of the worker.
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
    # Beam gives pool workers no options, and refuses s3:// without; the environment then says how to reach a store.
    FileSystems.set_options(PipelineOptions(flags=[]))

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
    """Link files to second names; a disk without hard links, or an object store, copies them.

    Raises:
        OSError: a file could not be copied.
    """
    elsewhere = {source: target for source, target in pairs.items() if is_remote(target)}
    if elsewhere:
        # In a single call, since each call makes its own client. S3's returns errors instead of raising them.
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
    unfinished.unlink(missing_ok=True)  # `os.replace` does nothing if the target is a link to the same file


def upload(source: Path, target: str) -> None:
    """Copy a file to an object store, where it appears once it is complete."""
    if not source.stat().st_size and FileSystems.get_scheme(target) == "s3":
        _create_empty(target)
        return
    with (
        open(source, "rb") as content,
        FileSystems.create(target, compression_type=CompressionTypes.UNCOMPRESSED) as file,
    ):
        shutil.copyfileobj(content, file)


def _create_empty(target: str) -> None:
    """Create an empty object at s3://, which Beam cannot: it uses multipart uploads, which need at least one part."""
    from apache_beam.io.aws.s3io import parse_s3_path  # needs boto3

    bucket, key = parse_s3_path(target)
    make_s3_client(target).put_object(Bucket=bucket, Key=key, Body=b"")


def open_bytes(path: str) -> BinaryIO:
    """Open a local or remote file for reading."""
    if not is_remote(path):
        return open(path, "rb")
    return FileSystems.open(path, compression_type=CompressionTypes.UNCOMPRESSED)
