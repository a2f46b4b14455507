"""Access corpus files in cloud stores and on clusters."""

import importlib.util
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import BinaryIO
from urllib.parse import urlsplit
from urllib.request import getproxies

from apache_beam.io.filesystem import BeamIOError, FileMetadata
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions

from beam_jobs.remote_files import exists, find_file, make_s3_client, match_files, open_remote
from keras_bert_flow.artifacts import SETTLED_SECONDS
from keras_bert_flow.deadlines import answer_within
from keras_bert_flow.local_paths import find_scheme
from keras_bert_flow.outputs import MANIFEST, WORK_SUFFIX, is_manifest
from keras_bert_flow.stores.store import HDFS
from keras_bert_flow.text.corpus.storage import LOCAL, is_remote

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
        if not is_remote(path):
            return LOCAL.open(path)
        return open_remote(path)

    def is_output(self, folder: str) -> bool:
        if not is_remote(folder):
            return LOCAL.is_output(folder)
        if folder.endswith(f"/{WORK_SUFFIX}"):
            return True
        if _find(manifest := f"{folder}/{MANIFEST}") is None:
            return False
        with open_remote(manifest) as file:
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
    try:
        return find_file(path)
    except (BeamIOError, OSError):  # opening it says why
        return None


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
