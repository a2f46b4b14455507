"""Local paths and remote addresses such as gs://bucket/x, and folders that several users of a machine share."""

import errno
import os
import pwd
import re
import stat
from contextlib import suppress
from pathlib import Path

from keras_bert_flow.console.terminal import QUERY_SECRET, hide_credentials

# A scheme of RFC 3986; `Path("gs://bucket/x")` is `gs:/bucket/x`, which would be a local folder `gs:`.
_ELSEWHERE = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*:)(?:/+|$)")
# user:password@ before the host or bucket. A secret key of S3 may hold a slash, so a password may, but does not begin
# with a port and a slash; an access point of S3 is named arn:aws:…
_PASSWORD = re.compile(r"(?!arn:)[^/@]*:(?!\d*(?:/|$)).*@")


def find_address(path: str | Path) -> str | None:
    """Return the address of a remote path, such as gs://bucket/x; None for a local path.

    Raises:
        ValueError: it holds a password or a signature, which manifests, logs and messages would show.
    """
    match = _ELSEWHERE.match(str(path))
    if match is None:
        return None
    scheme, rest = match[1], str(path)[match.end() :]
    if password := _PASSWORD.match(rest):
        raise ValueError(
            f"An address must not hold a password. Received: one in {scheme}//***@{rest[password.end() :]}. Leave it "
            "out, and give credentials in the environment, such as AWS_ACCESS_KEY_ID or HADOOP_USER_NAME."
        )
    if QUERY_SECRET.search(rest):
        raise ValueError(
            f"An address must not hold a token or a signature. Received: {hide_credentials(f'{scheme}//{rest}')}. "
            "Leave it out, and give credentials in the environment; or download the file first."
        )
    return f"{scheme}//{rest}"


def find_scheme(address: str) -> str:
    """Return the scheme of an address such as s3://bucket/x, in lower case."""
    return address.partition("://")[0].lower()


def name_path(path: str | Path) -> str:
    """Return a path as the user wrote it: a remote one with both slashes after its scheme."""
    return find_address(path) or str(Path(path))


def check_local(path: str | Path, name: str = "The output") -> Path:
    """Check that a path is local, and return it.

    Args:
        path: as the user gave it.
        name: what the path is, to begin the error message with.
    Raises:
        ValueError: it begins with a scheme, such as gs://, s3://, hdfs:// or file://.
    """
    if given := find_address(path):
        raise ValueError(
            f"{name} must be on a local disk, unlike text, records, models and what is made of them. "
            f"Received: {given}. Give a path without a scheme, and copy the files."
        )
    return Path(path)


def is_configuration(path: str | Path) -> bool:
    """Return whether a path given as a model is that of a configuration."""
    return Path(path).suffix in (".yaml", ".yml") and not Path(path).is_dir()


# Folders that several users share: the modes of what is made in them, whose a file is, and what is refused in them.
#
# A folder of results is shared by its mode: its group or everybody may write to it. What is made in it for everybody
# who makes results there, stage folders and locks, is opened to the same users. Results follow the umask.

_GROUP, _WORLD = 0o2070, 0o1007  # bits of a folder's mode: setgid and the group's, sticky and those of all others


def make_folder(folder: Path, in_store: bool = False) -> None:
    """Create a folder and its missing parents, each shared with the group that shares its parent.

    Args:
        in_store: the folder's parent is a folder of results: if it exists and is open to everybody, so is the folder.
    """
    is_open = in_store and folder.parent.is_dir()
    for path in (*reversed(folder.parents), folder):
        if path.is_dir():
            continue
        try:
            path.mkdir()
        except FileExistsError:  # made meanwhile, or no folder
            path.mkdir(exist_ok=True)
            continue
        os.chmod(path, stat.S_IMODE(path.stat().st_mode) | _find_shared_bits(path, is_open and path == folder))


def check_work_folder(work: Path) -> None:
    """Check that what is at the path of a folder to write in, if anything, is a folder, and this user's to go on with.

    In a shared folder somebody may have put a link there, through which files elsewhere would be changed.

    Raises:
        FileExistsError: it is a link or no folder.
        PermissionError: it is another user's, and either closed or in a folder where everybody may make such a one.
    """
    refuse_link(work)
    if not work.exists():
        return
    user = work.stat().st_uid
    is_strange = user not in (os.geteuid(), 0) and bool(work.parent.stat().st_mode & stat.S_ISVTX)
    if is_strange or not os.access(work, os.R_OK | os.W_OK | os.X_OK):
        raise PermissionError(
            f"Unfinished work must be yours to go on with it. Received: {work} of {name_owner(user)}. Let that user "
            "run the same command again or remove it, or choose another output."
        )


def refuse_link(work: Path) -> None:
    """Raise FileExistsError if a link, or anything else that is no folder, is at the path of a folder to write in."""
    if work.is_symlink() or work.exists() and not work.is_dir():
        what = f"a link to {os.readlink(work)}" if work.is_symlink() else "no folder"
        raise FileExistsError(
            f"A folder to work in must be a folder. Received: {work}, which is {what}. Remove it or choose another "
            "output."
        )


def name_owner(user: int) -> str:
    """Return the name of a user for a message, or the number of one without a name."""
    try:
        return f"user {pwd.getpwuid(user).pw_name}"
    except KeyError:
        return f"user {user}"


def open_shared(path: Path, is_made: bool = True) -> int:
    """Open a file that several users lock, and return its descriptor.

    Another user's that may not be written is opened for reading: that is enough for a lock.

    Args:
        is_made: make it if it is missing.
    Raises:
        FileExistsError: it is a link or no file.
        OSError: it may not be opened.
    """
    flags = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    no_lock = FileExistsError(f"A lock must be a file, and no link. Received: {path}, which is not. Remove it.")
    while True:
        # Not O_CREAT for what exists: Linux refuses it for other users' files in a folder that is open to all.
        for mode in (os.O_RDWR, os.O_RDONLY):
            try:
                descriptor = os.open(path, flags | mode)
            except FileNotFoundError:
                if not is_made:
                    raise
                break
            except OSError as error:
                if error.errno == errno.ELOOP:
                    raise no_lock from None
                if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS) or mode == os.O_RDONLY:
                    raise
            else:
                status = os.fstat(descriptor)
                if stat.S_ISREG(status.st_mode) and status.st_nlink <= 1:
                    return descriptor
                os.close(descriptor)
                raise no_lock
        try:
            descriptor = os.open(path, flags | os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:  # made meanwhile
            continue
        with suppress(OSError):  # removed meanwhile
            # Everybody who may write to its folder may read and write a file of ours.
            bits, mode = _find_shared_bits(path, True) & 0o66, stat.S_IMODE(path.stat().st_mode)
            if bits & ~mode:
                os.chmod(path, mode | bits)
        return descriptor


def _find_shared_bits(path: Path, with_world: bool) -> int:
    """Return the bits of the mode of a path's parent that open it to its group, or to everybody."""
    own, parent = path.stat(), path.parent.stat()
    if parent.st_mode & stat.S_IWOTH:
        others = parent.st_mode & _WORLD if with_world else 0
        return others | (others & 0o7) << 3  # its group is part of everybody
    is_shared = parent.st_mode & stat.S_IWGRP and parent.st_gid == own.st_gid
    return parent.st_mode & _GROUP if is_shared else 0


def name_argument(path: str | Path) -> str:
    """Return a path on this disk as the argument of a command, which is no option if it begins with a dash.

    >>> name_argument("-mine.yaml")
    './-mine.yaml'
    """
    path = str(Path(path))
    return f"./{path}" if path.startswith("-") else path
