"""Foreign text on a terminal is escaped, and elsewhere it is exact."""

import io
import json
import logging
import os
import pty
from pathlib import Path

import pytest

from keras_bert_flow.console.terminal import (
    EscapingFormatter,
    escape_controls,
    show,
    show_exception,
    show_json,
)
from tests.hostile_names import HOSTILE, hidden_in

LETTERS = "é 日 می\u200cخواهم ❤\ufe0f 👩\u200d💻"  # with the joiners that they need


def on_terminal(write, encoding: str = "utf-8") -> str:
    """Return what a terminal receives of what a function writes to its argument; lines end as they are sent."""
    leader, follower = pty.openpty()
    with open(follower, "w", encoding=encoding) as file:
        write(file)
        file.write("\x03")
        file.flush()
        shown = b""
        while not shown.endswith(b"\x03"):  # a read returns what the terminal has received by then
            shown += os.read(leader, 1 << 16)
    os.close(leader)
    return shown[:-1].decode(encoding).replace("\r\n", "\n")


def in_file(write, path: Path) -> bytes:
    with open(path, "w", encoding="utf-8") as file:
        write(file)
    return path.read_bytes()


@pytest.mark.parametrize("name", HOSTILE)
def test_line_is_escaped_on_a_terminal_and_exact_in_a_file(name, tmp_path):
    line = on_terminal(lambda file: show(f"label {name} é", file))
    assert not hidden_in(line) and line.count("\n") == 1
    if "\\" not in name:
        assert line.rstrip("\n").encode("latin-1").decode("unicode_escape") == f"label {name} é"
    assert in_file(lambda file: show(f"label {name} é", file), tmp_path / "file") == f"label {name} é\n".encode()


def test_letters_stay_on_a_terminal():
    assert on_terminal(lambda file: show(LETTERS, file)) == f"{LETTERS}\n"
    assert on_terminal(lambda file: show("a\nb\tc", file, keep="\n")) == "a\nb\\tc\n"


def test_invisible_letters_are_escaped():
    """Without a glyph, though Unicode calls them letters or marks: fillers of Hangul, variation selectors."""
    assert escape_controls("a\u3164b\u115f\u034f\U000e0101") == "a\\u3164b\\u115f\\u034f\\U000e0101"


def test_path_that_is_not_utf8_is_shown(tmp_path):
    path = os.fsdecode(b"caf\xe9")
    assert on_terminal(lambda file: show(Path(path), file)) == "caf\\udce9\n"
    assert in_file(lambda file: show(Path(path), file), tmp_path / "file") == b"caf\xe9\n"
    assert in_file(lambda file: show("half \ud800", file), tmp_path / "file") == b"half \\ud800\n"


def test_letters_that_the_terminal_lacks_are_escaped():
    assert on_terminal(lambda file: show("日", file), encoding="ascii") == "\\u65e5\n"


@pytest.mark.parametrize("name", [*HOSTILE, "\U000e0041", LETTERS])
def test_json_on_a_terminal_has_the_same_value(name, tmp_path):
    document = json.dumps({name: [name]}, ensure_ascii=False, indent=1)
    shown = on_terminal(lambda file: show_json(document, file))
    assert not hidden_in(shown, "\n\u200c\u200d") and json.loads(shown) == {name: [name]}
    assert in_file(lambda file: show_json(document, file), tmp_path / "file") == f"{document}\n".encode()


def test_json_with_half_a_character_is_shown(tmp_path):
    document = json.dumps("é\ud800\U0001f600", ensure_ascii=False)
    assert json.loads(in_file(lambda file: show_json(document, file), tmp_path / "file")) == json.loads(document)
    assert json.loads(on_terminal(lambda file: show_json(document, file))) == json.loads(document)
    assert on_terminal(lambda file: show_json('"é"', file)).strip() == '"é"'


def test_log_is_escaped_with_its_traceback():
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(EscapingFormatter("%(message)s"))
    for logger in ("keras_bert_flow.tasks", "another.library"):
        try:
            raise ValueError("".join(HOSTILE))
        except ValueError as error:
            record = logging.LogRecord(logger, logging.ERROR, "", 0, "%s", ("\n\x1b[2J",), (ValueError, error, None))
            handler.emit(record)
    ours, *others = stream.getvalue().split("\\x1b[2J")
    assert not hidden_in(stream.getvalue())
    assert ours == "\\n" and others[0].endswith("\n")  # a library's messages have lines


def test_traceback_is_escaped_on_a_terminal(monkeypatch):
    def write(file):
        monkeypatch.setattr("sys.stderr", file)
        try:
            raise RuntimeError("\x1b]0;pwned\x07")
        except RuntimeError as error:
            show_exception(RuntimeError, error, error.__traceback__)

    shown = on_terminal(write)
    assert not hidden_in(shown) and "RuntimeError: \\x1b]0;pwned\\x07" in shown and shown.count("\n") > 2
