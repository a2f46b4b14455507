"""One-line messages for the system's file errors: the rule, what was received, and the remedy."""

import errno
import os
import shutil
import tempfile

from keras_bert_flow.terminal import escape_controls

SHOWN_CHARACTERS = 120  # of a path
FULL_BYTES = 1 << 20  # a disk with fewer free is full

# errno → (rule, remedy)
_EXPLANATIONS = {
    errno.ENOENT: ("A path must exist", "Check it for a typing error"),
    errno.EACCES: (
        "A path must be readable, and an output writable",
        "Change its permissions or choose another path",
    ),
    errno.EPERM: ("A path must be one that you may change", "Change its owner or attributes, or choose another path"),
    errno.EROFS: ("An output must be on a file system that can be written", "Choose another path"),
    errno.ENAMETOOLONG: ("A path must be short enough for its file system", "Choose a shorter one"),
    errno.EISDIR: ("A file must not be a folder", "Choose another path"),
    errno.ENOTDIR: ("Each part of a path but the last must be a folder", "Choose another path"),
    errno.ELOOP: ("Symbolic links must not point at each other", "Remove one of them or choose another path"),
    errno.EEXIST: ("An output must be new", "Choose another path"),
    errno.ENOSPC: ("An output must fit on its disk", "Make room or choose another path"),
    errno.EDQUOT: ("An output must fit in your disk quota", "Make room or choose another path"),
    errno.EFBIG: ("A file must not exceed the limit on file sizes", "Raise the limit with ulimit -f"),
    errno.EMFILE: ("A process must not open too many files", "Raise the limit with ulimit -n"),
}


def explain_os_error(error: OSError) -> str:
    """Return the message of an error as one line.

    An error without `errno` was raised by this project, and its own message is returned.
    """
    if error.errno is None:
        return " ".join(str(error).split())
    reason = (error.strerror or os.strerror(error.errno)).lower()
    rule, remedy = _EXPLANATIONS.get(error.errno, ("The system must allow what was asked of it", ""))
    received = reason if error.filename is None else f"{shorten_path(os.fspath(error.filename))}: {reason}"
    if error.filename is None and error.errno == errno.ENOSPC:
        received += _name_full_places()
    return f"{rule}. Received: {received}." + (f" {remedy}." if remedy else "")


def _name_full_places() -> str:
    """Return the places whose disk is full, for the error of a write that does not name its file."""
    places = {"the working directory": os.curdir, f"{tempfile.gettempdir()}, of temporary files": tempfile.gettempdir()}
    full = [name for name, place in places.items() if shutil.disk_usage(place).free < FULL_BYTES]
    return f" on the disk of {' and '.join(full)}" if full else ""


def shorten_path(path: str | bytes | int) -> str:
    """Return a path for a message: printable, on one line, with the middle of a long path left out."""
    text = os.fsdecode(path) if isinstance(path, bytes) else str(path)
    text = escape_controls(text)
    half = SHOWN_CHARACTERS // 2
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:half]}...{text[-half:]} ({len(text)} characters)"
