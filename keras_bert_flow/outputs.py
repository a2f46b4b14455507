"""Check, without writing anything, that an output can be made where it was asked for."""

import errno
import os
from pathlib import Path

from keras_bert_flow.local_paths import check_local

MANIFEST = "manifest.json"  # that of `records.manifest`, by which a published folder is known
MAX_PATH_BYTES = 4096 - 256  # PATH_MAX of Linux less the files within the output
SUFFIX_BYTES = len("..lock.work")  # of the names beside an output while it is made


def check_output(output: str | Path, name: str = "The output") -> Path:
    """Check that a folder can be published at a path, or may be there already.

    Args:
        name: what the path is, to begin messages with.
    Raises:
        FileExistsError: another file or folder is there, or a link that leads nowhere.
        OSError: the place cannot be written; `os_errors` explains such errors.
        ValueError: the path is not on a local disk.
    """
    output = check_local(output, name)
    check_place(output)
    if output.exists() and not (output / MANIFEST).is_file():
        raise existing_output(output)
    return output


def check_place(path: str | Path) -> None:
    """Check that a file or folder can be made at a path, together with the folders above it that are missing."""
    path = Path(path).absolute()
    if len(os.fsencode(path)) > MAX_PATH_BYTES:
        raise _error(errno.ENAMETOOLONG, path)
    place = path
    while not os.path.exists(place):
        if place.is_symlink():
            raise FileExistsError(
                f"An output must not be or be below a link that leads nowhere. Received: {place} -> "
                f"{os.readlink(place)}. Remove the link or choose another path."
            )
        if place == place.parent:
            break
        place = place.parent
    folder = place.parent if place == path else place
    if not folder.is_dir():
        raise _error(errno.ENOTDIR, folder)
    _check_writable(folder)
    longest = max(len(os.fsencode(part)) for part in path.relative_to(folder).parts)
    if place != path and longest + SUFFIX_BYTES > os.statvfs(folder).f_namemax:
        raise _error(errno.ENAMETOOLONG, path)


def existing_output(output: Path) -> FileExistsError:
    """Return the error of an output that is there already and is not the one wanted."""
    return FileExistsError(f"The output folder must be new. Received: {output}, which exists. Choose another one.")


def _check_writable(folder: Path) -> None:
    if not os.access(folder, os.W_OK | os.X_OK):
        is_read_only = os.statvfs(folder).f_flag & os.ST_RDONLY
        raise _error(errno.EROFS if is_read_only else errno.EACCES, folder)


def _error(number: int, path: Path) -> OSError:
    return OSError(number, os.strerror(number), str(path))
