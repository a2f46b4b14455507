"""Remove the files of killed jobs whose outputs are not requested again."""

import contextlib
import re
import shutil
import time
import uuid
from pathlib import Path

from keras_bert_flow.locks import locked

QUIET_SECONDS = 24 * 3600
_WORK, _LOCK = ".work", ".lock"  # names as in `publishing`, after a dot and the name of the output
_JOB_FOLDER = re.compile(r"\.[0-9a-f]{32}")


def new_job_folder(work: Path) -> Path:
    """Create a folder with a unique name for the files of one job."""
    place = work / f".{uuid.uuid4().hex}"
    place.mkdir()
    return place


def remove_leftovers(parent: Path) -> None:
    """Remove the job folders that killed jobs left in the work folders next to an output.

    A killed job's files are removed when its output is made again. With other settings an output may have another name,
    and the files, as large as the corpus, would stay. This removes those on which no process holds a lock and, since
    some network disks do not show locks to other machines, to which nothing was written for a day. Errors are ignored.

    Args:
        parent: the folder that contains outputs.
    """
    for work in parent.glob(f".*{_WORK}"):
        with contextlib.suppress(OSError):  # owned by another user, in use by a job, or removed meanwhile
            if work.is_symlink():  # nothing of ours
                continue
            folders = [path for path in work.iterdir() if _JOB_FOLDER.fullmatch(path.name) and _is_quiet(path)]
            if folders:
                with locked(work.with_suffix(_LOCK), wait=False):
                    for folder in folders:
                        shutil.rmtree(folder, ignore_errors=True)
                    work.rmdir()  # fails if it is not empty


def _is_quiet(folder: Path) -> bool:
    last_written = max(path.stat().st_mtime for path in (folder, *folder.rglob("*")))
    return last_written < time.time() - QUIET_SECONDS
