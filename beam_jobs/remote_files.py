"""Files at remote addresses: through Apache Beam's filesystems, and on HDFS through `keras_bert_flow.stores`.

Beam's own filesystem for HDFS lists no subfolders, shows files that are being written, does not replace a file, copies
through the machine that asks, and connects to one cluster, which options name and workers in a pool do not learn.
"""

import io
import shutil
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from apache_beam.io.filesystem import BeamIOError, CompressionTypes, FileMetadata
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions

from keras_bert_flow.local_paths import find_scheme
from keras_bert_flow.stores.store import HDFS, Store

_COPIES = 16  # at a time, each of which may take 50 ms, of thousands of files

if FileSystems._pipeline_options is None:
    # Beam gives pool workers no options, and refuses s3:// without; the environment then says how to reach a store.
    FileSystems.set_options(PipelineOptions(flags=[]))


def list_files(folder: str) -> Sequence[FileMetadata]:
    """Return the path, size and time of every file below a folder.

    Raises:
        BeamIOError, OSError: it cannot be reached.
    """
    if find_scheme(folder) != HDFS:
        (result,) = FileSystems.match([f"{folder}/**"])
        return list(result.metadata_list)
    with suppress(FileNotFoundError):
        found = Store(folder).list().items()
        return [FileMetadata(f"{folder}/{name}", size, int(version) / 1000) for name, (size, version) in found]
    return []


def match_files(pattern: str) -> list[str]:
    """Return the files that match a glob.

    Raises:
        BeamIOError, OSError: it cannot be reached.
    """
    if find_scheme(pattern) == HDFS:
        store, name = _split(pattern)
        return [f"{store.address}/{found}" for found in store.glob(name)]
    (result,) = FileSystems.match([pattern])
    return [metadata.path for metadata in result.metadata_list if not metadata.path.endswith("/")]


def find_file(path: str) -> FileMetadata | None:
    """Return the path, size and time of a file; None if it does not exist.

    Raises:
        BeamIOError, OSError: it cannot be reached.
    """
    if find_scheme(path) == HDFS:
        found = list_files(path)  # of a file, itself
        return found[0] if len(found) == 1 and found[0].path == f"{path}/" else None
    (result,) = FileSystems.match([path])
    return next((found for found in result.metadata_list if found.path == path), None)


def exists(path: str) -> bool:
    """Return whether there is a file or a folder.

    Raises:
        BeamIOError, OSError: it cannot be reached.
    """
    if find_scheme(path) == HDFS:
        store, name = _split(path)
        return store.exists(name)
    return FileSystems.exists(path)


def open_remote(path: str) -> BinaryIO:
    """Open a file for reading its bytes as stored, with `readline` and `seek`."""
    if find_scheme(path) == HDFS:
        store, name = _split(path)
        return store.open(name)
    file = FileSystems.open(path, compression_type=CompressionTypes.UNCOMPRESSED)
    return io.BufferedReader(file) if isinstance(file, io.RawIOBase) else file


def upload(source: Path, target: str) -> None:
    """Copy a file from this disk; it appears once it is complete."""
    if find_scheme(target) == HDFS:
        store, name = _split(target)
        store.upload(source, name)
        return
    if not source.stat().st_size and find_scheme(target) == "s3":
        _create_empty(target)
        return
    with (
        open(source, "rb") as content,
        FileSystems.create(target, compression_type=CompressionTypes.UNCOMPRESSED) as file,
    ):
        shutil.copyfileobj(content, file)


def give_names(pairs: Mapping[str, str]) -> None:
    """Copy files to second names within their store, some at a time; on HDFS, rename them, unless that is done already.

    Raises:
        OSError: a file could not be copied or renamed.
    """
    named = [*pairs.items()]
    parts = [named[first::_COPIES] for first in range(min(_COPIES, len(named)))]
    if len(parts) > 1:
        with ThreadPoolExecutor(len(parts)) as pool:
            list(pool.map(_give_names, parts))  # raises their errors
    elif parts:
        _give_names(parts[0])


def _give_names(pairs: Sequence[tuple[str, str]]) -> None:
    if find_scheme(pairs[0][1]) == HDFS:
        for source, target in pairs:
            store, name = _split(source)
            store.rename(name, _split(target)[1])
        return
    # In a single call, since each call makes its own client. S3's returns errors instead of raising them.
    for _, target, error in FileSystems.copy(*map(list, zip(*pairs, strict=True))) or ():
        if error is not None:
            raise OSError(
                f"A file must be copied within its store. Received: {target}: {' '.join(str(error).split())}. Run "
                "the same command again."
            )


def remove(folder: str, paths: Iterable[str]) -> None:
    """Remove files below a folder, those that exist, and on HDFS the folders there that become empty."""
    if find_scheme(folder) == HDFS:
        store = Store(folder)
        for path in paths:
            store.remove(path.removeprefix(f"{folder}/"))
    elif listed := list(paths):
        with suppress(BeamIOError):  # another job, or a retry by the store's library, removed them first
            FileSystems.delete(listed)


def remove_all(folder: str, path: str) -> None:
    """Remove all files below a path below a folder, and on HDFS the folders there that become empty."""
    if find_scheme(folder) == HDFS:
        Store(folder).remove_folder(path.removeprefix(f"{folder}/"))
    else:
        remove(folder, [found.path for found in list_files(path)])


def make_s3_client(path: str) -> Any:
    """Return a boto3 client for an s3:// address, with Beam's options."""
    from apache_beam.io.aws.s3io import S3IO  # needs boto3

    return S3IO(options=FileSystems.get_filesystem(path)._options).client.client


def _create_empty(target: str) -> None:
    """Create an empty object at s3://, which Beam cannot: it uses multipart uploads, which need at least one part."""
    from apache_beam.io.aws.s3io import parse_s3_path  # needs boto3

    bucket, key = parse_s3_path(target)
    make_s3_client(target).put_object(Bucket=bucket, Key=key, Body=b"")


def _split(address: str) -> tuple[Store, str]:
    """Return the store at the root of an address, and the rest of the address."""
    scheme, _, place = address.partition("://")
    host, _, name = place.partition("/")
    return Store(f"{scheme}://{host}"), name
