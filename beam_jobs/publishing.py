"""Publish the result of a job, to a folder on a disk, in an object store or on HDFS.

Remote places have no atomic rename of a folder. So workers write below `OUTPUT/.work/JOB/`; at the end the files get
their names, `manifest.json` last: readers treat a folder without one as unfinished.
"""

import json
import os
import re
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from apache_beam.io.filesystem import BeamIOError, FileMetadata
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions

from beam_jobs.running import check_reach, job_folder
from beam_jobs.storage import check_reachable, exists, give_names, list_files, open_bytes, remove, remove_all, upload
from keras_bert_flow.files.inputs import NOTHING_HELD, InputStates
from keras_bert_flow.files.paths import check_local, find_scheme
from keras_bert_flow.results.artifacts import removed_on_leaving
from keras_bert_flow.results.manifest import MANIFEST, Manifest, read_manifest, write_manifest
from keras_bert_flow.results.publishing import Contents, check_key, publish
from keras_bert_flow.results.stages.keys import Stage
from keras_bert_flow.stores.store import HDFS
from keras_bert_flow.text.corpus.inputs import is_remote

QUIET_SECONDS = 600.0  # a job renews its lease every `LEASE_SECONDS`; after this time without renewal it is dead
LEASE_SECONDS = 60.0
_WORK, _LEASE = ".work", "lease.json"
_OURS = re.compile(
    r"(train|held_out)-\d{5}-of-\d{5}\.tfrecord(\.index)?|vocab\.txt|tokenizer.*\.json|rejected_inputs\.txt"
)


class JobFolders(NamedTuple):
    """The folders of a job.

    Attributes:
        work: local folder, whose final content is published.
        scratch: local folder; for an output on a disk, one that all workers must reach.
        place: where workers write files to publish: in an object store, or the same as `scratch`.
        is_shared: whether workers on other machines may reach `scratch`.
    """

    work: Path
    scratch: Path
    place: str
    is_shared: bool = True


def publish_result(
    output: str | Path,
    stage: Stage,
    key: str,
    build: Callable[[JobFolders], Contents],
    options: Sequence[str] = (),
    inputs: InputStates = NOTHING_HELD,
) -> str | Path:
    """Build and publish a result, unless it is already published; return its folder.

    Args:
        output: the folder, on a disk or at gs://, s3:// and the like.
        stage: the stage of the result.
        key: content key of the result.
        build: fills the folders and describes their contents.
        options: Beam's options, which may include how to reach the place.
        inputs: states of the inputs from before they were digested.
    Raises:
        FileExistsError: the output exists and holds something else, or the result with a file missing.
        OSError: the place is not writable.
        ValueError: the place cannot be reached, or an input has changed.
    """
    check_reach(str(output), options)
    if is_remote(str(output)):
        return _publish_remote(str(output).rstrip("/"), stage, key, build, options, inputs)

    def build_here(work: Path) -> Contents:
        with job_folder(work) as folder:
            return build(JobFolders(work, folder, str(folder)))

    return publish(output, stage.name, key, build_here, inputs=inputs, revision=stage.revision)


def check_place_of(output: str | Path) -> None:
    """Raise ValueError for a remote address given as a `Path`, which loses a slash."""
    if not is_remote(str(output)):
        check_local(output)


def check_remote_output(output: str, options: Sequence[str] = ()) -> None:
    """Raise ValueError or FileExistsError if a result cannot be published at an address in an object store.

    If something is published there already, nothing is written, and `publish_result` checks what it is.
    """
    FileSystems.set_options(PipelineOptions(list(options)))
    check_reachable(output)
    names = _list(output)
    if MANIFEST in names:
        return
    for name in names:
        if not name.startswith(f"{_WORK}/") and not _OURS.fullmatch(name):  # not of our own unfinished jobs
            raise FileExistsError(
                f"The output must be new. Received: {output}, which holds {name}. Choose another place."
            )
    probe = f"{output}/{_WORK}/{uuid.uuid4().hex}"  # listing is not enough: a store may list a missing bucket as empty
    try:
        with tempfile.NamedTemporaryFile() as file:
            upload(Path(file.name), probe)
        remove(output, [probe])
    except Exception as error:  # each store raises its own errors
        if find_scheme(output) == HDFS:
            raise  # ours, with the address
        raise _out_of_reach(output, error) from error


def read_published(folder: str | Path) -> Manifest:
    """Return the manifest of a local or remote published folder."""
    if not is_remote(str(folder)):
        return read_manifest(folder)
    with tempfile.TemporaryDirectory() as local:
        with open_bytes(f"{folder}/{MANIFEST}") as file:
            (Path(local) / MANIFEST).write_bytes(file.read())
        return read_manifest(local)


def _publish_remote(
    output: str,
    stage: Stage,
    key: str,
    build: Callable[[JobFolders], Contents],
    options: Sequence[str],
    inputs: InputStates,
) -> str:
    check_remote_output(output, options)
    if exists(f"{output}/{MANIFEST}"):
        _check_finished(output, read_published(output), key)
        _remove_leftovers(output)  # of a job that was killed after its last step, publishing
        return output
    check_key(output, stage.name, lambda _: key)
    _remove_leftovers(output)
    place = f"{output}/{_WORK}/{uuid.uuid4().hex}"
    with tempfile.TemporaryDirectory() as folder, removed_on_leaving(folder), _lease(output, place):
        work, scratch = Path(folder) / "work", Path(folder) / "scratch"
        work.mkdir()
        scratch.mkdir()
        contents = build(JobFolders(work, scratch, place, is_shared=False))
        inputs.check()
        manifest = write_manifest(work, stage.name, key, **vars(contents), revision=stage.revision)
        names = [file.name for file in manifest.files]
        for name in (*names, MANIFEST):
            if (work / name).exists():  # the others are there, from the workers
                upload(work / name, f"{place}/{name}")
        give_names({f"{place}/{name}": f"{output}/{name}" for name in names})
        found = _list(output).items()
        remove(output, [file.path for name, file in found if _OURS.fullmatch(name) and name not in names])
        give_names({f"{place}/{MANIFEST}": f"{output}/{MANIFEST}"})
    return output


def _check_finished(output: str, manifest: Manifest, key: str) -> None:
    if manifest.key != key:
        raise FileExistsError(
            f"The output must be new. Received: {output}, which holds another result. Choose another place."
        )
    found = _list(output)
    for file in manifest.files:
        if file.name not in found or found[file.name].size_in_bytes != file.file_bytes:
            raise FileExistsError(
                f"Every file of a manifest must exist, undamaged. Received: {output}/{file.name}, which is not. "
                "To have it made again, move this folder away first."
            )


def _list(folder: str) -> dict[str, FileMetadata]:
    """Return name → path, size and time of every file below a folder.

    Raises:
        ValueError: it cannot be reached.
    """
    try:
        return {found.path.removeprefix(f"{folder}/"): found for found in list_files(folder)}
    except BeamIOError as error:
        raise _out_of_reach(folder, error) from error


def _out_of_reach(folder: str, error: Exception) -> ValueError:
    return ValueError(
        f"The output must be reachable. Received: {folder}: {' '.join(str(error).split())}. Check the path, and your "
        "rights to it."
    )


@contextmanager
def _lease(output: str, place: str) -> Iterator[None]:
    """Hold a lease that shows other jobs that this one is alive; remove the job's files at the end."""
    ended = threading.Event()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / _LEASE
        file.write_text(json.dumps({"host": socket.gethostname(), "process": os.getpid(), "started": time.time()}))
        upload(file, f"{place}/{_LEASE}")

        def renew() -> None:
            while not ended.wait(LEASE_SECONDS):
                with suppress(Exception):  # a single failed renewal does no harm
                    upload(file, f"{place}/{_LEASE}")

        thread = threading.Thread(target=renew, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()  # or it might write the lease again
            remove_all(output, place)


def _remove_leftovers(output: str) -> None:
    """Remove the files of killed jobs: those whose process on this machine is gone, or whose lease has expired."""
    jobs: dict[str, list[FileMetadata]] = {}
    for name, found in _list(f"{output}/{_WORK}").items():
        jobs.setdefault(name.split("/")[0], []).append(found)
    for name, files in jobs.items():
        last_written = max(found.last_updated_in_seconds for found in files)
        if _is_gone(f"{output}/{_WORK}/{name}/{_LEASE}") or last_written < time.time() - QUIET_SECONDS:
            remove_all(output, f"{output}/{_WORK}/{name}")


def _is_gone(lease_path: str) -> bool:
    """Return whether a job ran on this machine and its process is gone, by its lease if there is one."""
    try:
        with open_bytes(lease_path) as file:
            lease = json.loads(file.read())
    except (BeamIOError, OSError, ValueError):
        return False
    if lease.get("host") != socket.gethostname() or not isinstance(process := lease.get("process"), int):
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False
