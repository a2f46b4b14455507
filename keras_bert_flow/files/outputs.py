"""Check that an output can be created at its path, and explain the system's file errors in one line."""

import errno
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

from keras_bert_flow.console.terminal import escape_controls
from keras_bert_flow.files.documents import Read
from keras_bert_flow.files.paths import check_local

MANIFEST = "manifest.json"  # marks a published folder; see `results.manifest`
MANIFEST_FIELDS = ("stage", "key", "config", "inputs", "files", "counters", "version", "digest")
MAX_PATH_BYTES = 4096 - 256  # PATH_MAX of Linux, minus room for the files within the output
_ENDS_BYTES = 1 << 20  # of a manifest, read at the beginning and at the end to recognise it
_MOST_NAMES = 4  # our manifests still have this many field names after a bit flip
WORK_SUFFIX = ".work"
CONFIG = "config.json"  # of a model directory, ours or Hugging Face's
MODEL_FILES = (CONFIG, "model.safetensors")
EXPORTED = "export.json"  # of an exported model
_UNPUBLISHED = re.compile(
    r"\..+\.work|\.work|[0-9a-f]{16}\.damaged-\d+"
)  # work folders; results that `kbf run` set aside
SUFFIX_BYTES = len("..lock.work")  # of the names next to an output while it is built


def check_output(output: str | Path) -> Path:
    """Check that a folder can be published at a path, or that a published one is already there.

    Raises:
        FileExistsError: another file or folder is there, or a broken link.
        OSError: the location is not writable; `explain_os_error` puts such errors into words.
        ValueError: the path is not on a local disk.
    """
    output = check_local(output)
    if (output / MANIFEST).is_file():  # nothing is written, as where it may only be read
        return output
    check_place(output)
    if output.exists() and not (output / MANIFEST).is_file():
        raise existing_output(output)
    return output


# Endings by which other programs tell the format of a file. A name with any other ending, as .txt, says nothing.
FORMATS = {
    **{".jsonl": "lines of JSON", ".ndjson": "lines of JSON", ".json": "JSON", ".yaml": "YAML", ".yml": "YAML"},
    **{".tsv": "columns between tabs", ".csv": "columns between commas", ".conll": "CoNLL", ".html": "HTML"},
    **{".parquet": "Parquet", ".arrow": "Arrow", ".feather": "Arrow", ".xlsx": "a spreadsheet", ".pkl": "pickle"},
    **{".npz": "arrays of NumPy", ".npy": "an array of NumPy", ".h5": "HDF5", ".safetensors": "safetensors"},
    **{".zip": "ZIP", ".gz": "gzip", ".bz2": "bzip2", ".xz": "xz", ".zst": "Zstandard", ".tfrecord": "TFRecord"},
}


def check_output_file(path: str | Path, endings: Sequence[str] = ()) -> Path:
    """Check that a file can be written at a path; an existing file will be replaced.

    Args:
        endings: those of the format that is written, the usual one first; the path must not have that of another.
    Raises:
        FileNotFoundError: the folder of the file is missing.
        OSError: the location is not writable, or is a folder; `explain_os_error` puts such errors into words.
        ValueError: the path is not on a local disk, or is a device or a pipe, which the file would replace; or it has
            the ending of another format.
    """
    path = check_local(path)
    ending = path.suffix.lower()
    if endings and ending in FORMATS and ending not in endings:
        raise ValueError(
            f"The output must have an ending of its format, {FORMATS[endings[0]]}. Received: {path}, with that of "
            f"{FORMATS[ending]}. Name it {path.with_suffix(endings[0]).name}."
        )
    if path.is_dir():
        raise _error(errno.EISDIR, path)
    if path.exists() and not stat.S_ISREG(path.stat().st_mode):
        raise ValueError(
            f"The output must be a file. Received: {path}, which is a device or a pipe. Choose another path."
        )
    check_place(path)
    if not path.parent.exists():
        raise FileNotFoundError(
            f"The output must be in a folder that exists. Received: {path}. Create {path.parent} or choose another "
            "path."
        )
    return path


def check_place(path: str | Path) -> None:
    """Check that a file or folder can be created at a path, together with its missing parent folders."""
    path = Path(path).absolute()
    if ".." in path.parts:  # the system cannot resolve `..` below a missing folder
        path = Path(os.path.normpath(path))
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


def check_apart(output: str | Path, inputs: Iterable[str | Path], name: str = "The output") -> None:
    """Check that writing an output replaces, removes and adds nothing in what is read.

    Links of both kinds, and names that differ in case alone where the system makes no difference, are the same file.

    Args:
        inputs: files and folders.
        name: what the output is, to begin messages with.
    Raises:
        ValueError: the output is an input, a file in one, or in a model or result that is one, whose digest would
            change; or an input lies where the output is built.
    """
    output = Path(output)
    for path in map(Path, inputs):
        if not path.exists():
            continue
        is_within = path.is_dir() and output.is_file() and output.resolve().is_relative_to(path.resolve())
        if is_within or (output.exists() and output.samefile(path) and not path.is_dir()):
            raise ValueError(
                f"{name} must not replace what is read. Received: {output}, which is{' in' * is_within} the input "
                f"{path}. Choose another path."
            )
        # Of a model or a result that is an input, the digest is that of the whole folder.
        is_around = path.is_dir() and path.resolve() in output.resolve().parents
        if is_around and ((path / CONFIG).is_file() or is_output(path)):
            raise ValueError(
                f"{name} must not be in a model or result that is read, whose files are its identity. Received: "
                f"{output}, in {path}. Choose a path outside it."
            )
        if path.resolve().is_relative_to(work := work_folder(output).resolve()):
            raise ValueError(
                f"{name} must not be built where an input lies. Received: {path}, in {work}, the work folder of "
                f"{output}. Move the input, or choose another path."
            )


def work_folder(output: str | Path) -> Path:
    """Return the folder in which an output is built."""
    output = Path(output).absolute()
    return output.with_name(f".{output.name}{WORK_SUFFIX}")


def is_output(folder: Path) -> bool:
    """Return whether a folder holds what this project made, or is making: a result, a model, or one set aside."""
    if _UNPUBLISHED.fullmatch(folder.name) or is_result(folder):
        return True
    return (folder / EXPORTED).is_file() or all((folder / name).is_file() for name in MODEL_FILES)


def walk_input(folder: Path) -> Iterator[Path]:
    """Yield an input folder and all that lies below it, except what is hidden and published results."""
    for place, names, files in os.walk(folder):
        yield Path(place)
        names[:] = [name for name in names if name[0] != "." and not is_result(Path(place) / name)]
        yield from (Path(place) / name for name in files if name[0] != ".")


def is_result(folder: Path, read: Read | None = None) -> bool:
    """Return whether a folder holds a manifest written by this project, whole or damaged.

    Other programs write files of that name too, such as manifests of web pages.

    Args:
        read: as for `documents.read_json`; by default only the ends of the file are read.
    """
    path = folder / MANIFEST
    if not path.is_file():
        return False
    with open(path, "rb") if read is None else BytesIO(read(path, -1)) as file:
        return is_manifest(file)


def is_manifest(file: BinaryIO) -> bool:
    """Return whether an open file is a manifest written by this project, whole or damaged."""
    content = file.read(_ENDS_BYTES)
    end = file.seek(0, os.SEEK_END)
    file.seek(max(len(content), end - _ENDS_BYTES))
    content += file.read(_ENDS_BYTES)
    return sum(f'"{name}"'.encode() in content for name in MANIFEST_FIELDS) >= _MOST_NAMES


def existing_output(output: Path) -> FileExistsError:
    """Return the error for an existing output that is not the wanted one."""
    return FileExistsError(f"The output folder must be new. Received: {output}, which exists. Choose another one.")


def _check_writable(folder: Path) -> None:
    if not os.access(folder, os.W_OK | os.X_OK):
        is_read_only = os.statvfs(folder).f_flag & os.ST_RDONLY
        raise _error(errno.EROFS if is_read_only else errno.EACCES, folder)
    try:
        # Most file systems support unnamed files. `os.access` lets root write to /proc, which takes no files.
        os.close(os.open(folder, getattr(os, "O_TMPFILE", os.O_DIRECTORY) | os.O_WRONLY, 0o600))
    except OSError:
        try:
            os.rmdir(tempfile.mkdtemp(prefix=".kbf-", dir=folder))
        except OSError as error:
            reason = os.strerror(error.errno or errno.EIO).lower()
            raise OSError(
                f"An output must be in a folder that takes new files. Received: {folder}: {reason}. "
                "Choose another path."
            ) from None


def _error(number: int, path: Path) -> OSError:
    return OSError(number, os.strerror(number), str(path))


# One-line messages for the system's file errors: the rule, what was received, and the remedy.

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
    if error.filename is None and error.errno == errno.ENOSPC:  # of a write, which does not name its file
        temporary = tempfile.gettempdir()
        places = {"the working directory": os.curdir, f"{temporary}, of temporary files": temporary}
        full = [name for name, place in places.items() if shutil.disk_usage(place).free < FULL_BYTES]
        received += f" on the disk of {' and '.join(full)}" if full else ""
    return f"{rule}. Received: {received}." + (f" {remedy}." if remedy else "")


def shorten_path(path: str | bytes | int) -> str:
    """Return a path for a message: printable, on one line, with the middle of a long path left out."""
    text = os.fsdecode(path) if isinstance(path, bytes) else str(path)
    text = escape_controls(text)
    half = SHOWN_CHARACTERS // 2
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:half]}...{text[-half:]} ({len(text)} characters)"
