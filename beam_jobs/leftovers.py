"""Remove the files of killed jobs whose outputs nobody asks for again."""

import contextlib
import re
import shutil
import time
import uuid
from pathlib import Path

from keras_bert_flow.locks import locked

QUIET_SECONDS = 24 * 3600
_WORK, _LOCK = ".work", ".lock"  # as `publishing` names them, behind a dot and the name of the output
_JOB_FOLDER = re.compile(r"\.[0-9a-f]{32}")


def new_job_folder(work: Path) -> Path:
    """Make a folder for the files of one job, under a name that no other job has."""
    place = work / f".{uuid.uuid4().hex}"
    place.mkdir()
    return place


def remove_leftovers(parent: Path) -> None:
    """Remove the job folders that killed jobs left in the work folders beside an output.

    A killed job's files go when its output is made again. With other settings an output may have another name, and the
    files, of the size of a corpus, would stay. Those go here that no process holds a lock on, and, as there are network
    disks whose locks other machines do not see, that nobody wrote to for a day. What cannot be removed stays.

    Args:
        parent: the folder that outputs are in.
    """
    for work in parent.glob(f".*{_WORK}"):
        with contextlib.suppress(OSError):  # another user's, held by a job, or removed meanwhile
            folders = [path for path in work.iterdir() if _JOB_FOLDER.fullmatch(path.name) and _is_quiet(path)]
            if folders:
                with locked(work.with_suffix(_LOCK), wait=False):
                    for folder in folders:
                        shutil.rmtree(folder, ignore_errors=True)
                    work.rmdir()  # it stays where it holds more


def _is_quiet(folder: Path) -> bool:
    last_written = max(path.stat().st_mtime for path in (folder, *folder.rglob("*")))
    return last_written < time.time() - QUIET_SECONDS
