"""Errors of the system about files become one line without `[Errno …]`, whatever raised them."""

import errno
import os
import shutil
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from keras_bert_flow.files.outputs import explain_os_error


def catch(call, *arguments) -> str:
    with pytest.raises(OSError) as caught:
        call(*arguments)
    return explain_os_error(caught.value)


def test_paths_that_cannot_be_used_are_explained(tmp_path: Path):
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    cases = {
        "must exist": catch(open, tmp_path / "missing"),
        "must not be a folder": catch(open, tmp_path),
        "must be a folder": catch(open, tmp_path / "file" / "inner"),
        "must not point at each other": catch(open, tmp_path / "loop"),
        "must be short enough": catch(open, tmp_path / ("x" * 5000)),
        "must be new": catch(os.mkdir, tmp_path / "file"),
    }
    for words, message in cases.items():
        assert words in message and ". Received: " in message
        assert "Errno" not in message and "\n" not in message and len(message) < 400


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_errors_of_permission_and_room_are_explained(number):
    message = explain_os_error(OSError(number, os.strerror(number), "/a/path"))
    assert " must " in message and f"Received: /a/path: {os.strerror(number).lower()}. " in message


def test_any_other_error_is_one_line_without_its_number():
    assert explain_os_error(OSError(errno.EIO, "Input/output error")).endswith("Received: input/output error.")
    assert "\x1b" not in explain_os_error(FileNotFoundError(errno.ENOENT, "No such file", "a\x1b[31m\nb"))


def test_message_of_this_project_is_kept():
    assert explain_os_error(FileNotFoundError("A table must be a file.\n Check it.")) == (
        "A table must be a file. Check it."
    )


def test_write_without_a_name_names_the_full_disk(monkeypatch):
    usage = {tempfile.gettempdir(): 0, os.curdir: 1 << 30}
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=usage[place]))
    message = explain_os_error(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    assert f"no space left on device on the disk of {tempfile.gettempdir()}, of temporary files. Make room" in message
