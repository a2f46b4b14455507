"""Access corpus files and remote places in cloud stores and on clusters."""

import importlib.util
import io
import os
import shutil
import socket
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit
from urllib.request import getproxies

from apache_beam.io.filesystem import BeamIOError, CompressionTypes, FileMetadata
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions

from keras_bert_flow.files.outputs import MANIFEST, WORK_SUFFIX, is_manifest
from keras_bert_flow.files.paths import find_scheme
from keras_bert_flow.results.artifacts import SETTLED_SECONDS
from keras_bert_flow.stores.store import HDFS, Store, answer_within
from keras_bert_flow.text.corpus.inputs import LOCAL, is_remote

# Files at remote addresses: through Apache Beam's filesystems, and on HDFS through `keras_bert_flow.stores`.
#
# Beam's own filesystem for HDFS lists no subfolders, shows files that are being written, does not replace a file,
# copies through the machine that asks, and connects to one cluster, which options name and workers in a pool do not
# learn.

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


def exists(path: str) -> bool:
    """Return whether there is a file or a folder.

    Raises:
        BeamIOError, OSError: it cannot be reached.
    """
    if find_scheme(path) == HDFS:
        store, name = _split(path)
        return store.exists(name)
    return FileSystems.exists(path)


def open_bytes(path: str) -> BinaryIO:
    """Open a local or remote file for reading its bytes as stored, with `readline` and `seek`."""
    if not is_remote(path):
        return open(path, "rb")
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
        from apache_beam.io.aws.s3io import parse_s3_path  # needs boto3

        # Beam cannot create an empty object: it uses multipart uploads, which need at least one part.
        bucket, key = parse_s3_path(target)
        make_s3_client(target).put_object(Bucket=bucket, Key=key, Body=b"")
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
        Store(folder).remove(path.removeprefix(f"{folder}/"), is_folder=True)
    else:
        remove(folder, [found.path for found in list_files(path)])


def make_s3_client(path: str) -> Any:
    """Return a boto3 client for an s3:// address, with Beam's options."""
    from apache_beam.io.aws.s3io import S3IO  # needs boto3

    return S3IO(options=FileSystems.get_filesystem(path)._options).client.client


def _split(address: str) -> tuple[Store, str]:
    """Return the store at the root of an address, and the rest of the address."""
    scheme, _, place = address.partition("://")
    host, _, name = place.partition("/")
    return Store(f"{scheme}://{host}"), name


# scheme → (module that Beam's filesystem for it needs, extra of apache-beam that installs it)
_EXTRAS = {
    "gs": ("google.cloud.storage", "gcp"),
    "s3": ("boto3", "aws"),
    "azfs": ("azure.storage.blob", "azure"),
}
_PORTS = {"http": 80, "https": 443}
_SECONDS_TO_ANSWER = 10.0
_REMEDY = "Check the network, the credentials in the environment, and the endpoint"
_answered: set[str] = set()  # stores that have answered this process


class BeamStorage:
    """Storage on local disks, on every filesystem that Beam supports, and on HDFS.

    Args:
        options: Beam's options, some of which, such as `--s3_region_name`, define how to reach a store.
    """

    def __init__(self, options: Sequence[str] = ()):
        FileSystems.set_options(PipelineOptions(list(options)))  # for this process; Beam passes them to workers

    def find(self, pattern: str, suffixes: tuple[str, ...]) -> list[str]:
        if not is_remote(pattern):
            return LOCAL.find(pattern, suffixes)
        check_reachable(pattern)
        try:
            if not pattern.endswith("/") and (found := match_files(pattern)):
                return found
            below = match_files(pattern.rstrip("/") + "/**")
        except BeamIOError as error:
            raise ValueError(
                f"An input must be reachable. Received: {pattern}: {' '.join(str(error).split())}. "
                "Check the path, and your rights to it."
            ) from error
        return [path for path in below if path.endswith(suffixes)]

    def open(self, path: str) -> BinaryIO:
        return open_bytes(path)

    def is_output(self, folder: str) -> bool:
        if not is_remote(folder):
            return LOCAL.is_output(folder)
        if folder.endswith(f"/{WORK_SUFFIX}"):
            return True
        if _find(manifest := f"{folder}/{MANIFEST}") is None:
            return False
        with open_bytes(manifest) as file:
            return is_manifest(file)

    def find_state(self, path: str) -> str | None:
        found = _find(path)
        return found and f"{found.size_in_bytes} {found.last_updated_in_seconds}"

    def find_version(self, path: str) -> str | None:
        found = _find(path)
        if found is None or not 0 < found.last_updated_in_seconds < time.time() - SETTLED_SECONDS:
            return None  # a file that has just been written may be written again with the same time
        return f"{found.size_in_bytes} {found.last_updated_in_seconds}"


def _find(path: str) -> FileMetadata | None:
    """Return the path, size and time of a file; None if there is none, or it cannot be reached: opening it says why."""
    try:
        if find_scheme(path) == HDFS:
            found = list_files(path)  # of a file, itself
            return found[0] if len(found) == 1 and found[0].path == f"{path}/" else None
        (result,) = FileSystems.match([path])
    except (BeamIOError, OSError):
        return None
    return next((found for found in result.metadata_list if found.path == path), None)


def check_reachable(path: str) -> None:
    """Check that Beam has a filesystem for a path and the library for it, and that a server answers.

    Raises:
        ValueError: one is missing, or no connection is made.
        NoAnswerError: the server does not answer in time, or credentials are looked for in vain.
    """
    scheme = find_scheme(path)
    if scheme == HDFS:
        exists(path)
        return
    module, extra = _EXTRAS.get(scheme, ("", ""))
    if extra and not _is_installed(module):
        raise ValueError(
            f"A path at {scheme}:// needs the module {module}, which is not installed. Received: {path}. "
            f"pip install 'apache-beam[{extra}]'"
        )
    try:
        FileSystems.get_filesystem(path)
    except (ValueError, BeamIOError):
        raise ValueError(
            f"A path must be local or one of {', '.join(f'{name}://' for name in (*_EXTRAS, HDFS))}. Received: {path}."
        ) from None
    if scheme == "s3":
        _check_answering(path)
    if (place := f"{scheme}://{urlsplit(path).netloc}") not in _answered:
        answer_within(lambda: _knock(path), "An object store", path, _REMEDY)
        _answered.add(place)


def _knock(path: str) -> None:
    with suppress(Exception):  # an answer that is an error is reported where the path is read or written
        FileSystems.exists(path)


def _check_answering(path: str) -> None:
    """Raise ValueError at once if no server answers; Beam would retry for ten minutes."""
    url = urlsplit(make_s3_client(path).meta.endpoint_url)
    if url.scheme in getproxies():
        return
    try:
        socket.create_connection((url.hostname, url.port or _PORTS[url.scheme]), _SECONDS_TO_ANSWER).close()
    except OSError as error:
        raise ValueError(
            f"An object store must answer. Received: {path}: {url.netloc}: {error}. Check the network, and "
            "AWS_ENDPOINT_URL or --s3_endpoint_url."
        ) from error


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of a parent package
        return False


# Where workers write the files that a job publishes: a shared folder, an object store or HDFS.
#
# A file appears under its name only when complete: to a remote place it is uploaded from a disk of the worker.

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
        if source in elsewhere:
            continue
        unfinished = Path(target).with_name(f".{uuid.uuid4().hex}")
        try:
            os.link(source, unfinished)
        except OSError:
            shutil.copyfile(source, unfinished)
        os.replace(unfinished, target)
        unfinished.unlink(missing_ok=True)  # `os.replace` does nothing if the target is a link to the same file
