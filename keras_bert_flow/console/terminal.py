"""What may be shown: untrusted text escaped for terminals and Markdown, hidden credentials, and tables."""

import io
import json
import logging
import os
import re
import shutil
import sys
import threading
import traceback
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from types import TracebackType
from typing import Any, TextIO
from urllib.parse import unquote

PACKAGE = "keras_bert_flow"
MAX_CHARACTERS = 200
# Zero-width joiners and emoji presentation: Persian, Indic scripts and emoji need them, and they reorder nothing.
JOINERS = "\u200c\u200d\ufe0e\ufe0f"
_HIDDEN_CATEGORIES = {"Cc", "Cf", "Cs", "Zl", "Zp"}
# Default_Ignorable_Code_Point beyond category Cf: no glyph at all. Source: Unicode 16, DerivedCoreProperties.txt.
_INVISIBLE = {0x34F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2065, 0x3164, 0xFFA0}
_INVISIBLE |= {*range(0x180B, 0x1810), *range(0xFE00, 0xFE10), *range(0xFFF0, 0xFFF9), *range(0xE0000, 0xE1000)}
HIDDEN = "***"
UNTOLD = "KBF_PROGRESS"  # variable: set to `off`, only training reports progress
# user:password@ in the middle of a text, and a user alone, which may be a token. On HDFS it is no secret, and what
# precedes an @ on the Hub is a model.
_PASSWORD_IN_TEXT = r"(?!arn:|\[)[^\s/@:'\"<>]{0,200}:(?!\d*(?:[/\s'\"<>]|$))([^\s'\"<>]{0,800})@"
_USER_IN_TEXT = re.compile(
    rf"([A-Za-z][A-Za-z0-9+.-]*:/{{1,2}})(?:{_PASSWORD_IN_TEXT}"
    r"|(?<!hf://)(?<!hdfs://)(?<=//)[^\s/?#@'\"<>]{1,800}@)"
)
# Tokens and signatures in the query of an address: X-Amz-Signature, X-Goog-Credential, sig, access_token, …
QUERY_SECRET = re.compile(
    r"([?&;](?:[\w.-]*(?:token|signature|credential|secret|passw(?:or)?d|api[_-]?key|access[_-]?key|accesskeyid|"
    r"accessid|auth)[\w.-]*|sig|key|pwd)=)[^\s&;#'\"<>]+",
    re.IGNORECASE,
)
TOLD_AFTER_SECONDS = 3.0
LEAST_SECRET = 4  # characters: shorter ones are too common to hide wherever they occur


def open_streams() -> "LostOutput | None":
    """Open the standard streams that are closed, so that no file gets their numbers and every writer finds them.

    Standard input is then empty, and what is written to standard output is lost.

    Returns:
        The standard output, which says whether something was lost; None if it was open.
    """
    lost: LostOutput | None = None
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            descriptor = os.open(os.devnull, os.O_RDWR)
            if descriptor != number:  # as when another is closed as well
                os.dup2(descriptor, number)
                os.close(descriptor)
            os.set_inheritable(number, True)
            stream: Any
            if number == 1:
                unread = os.fdopen(number, "wb", closefd=False)
                stream = lost = LostOutput(unread, encoding="utf-8", errors="replace", write_through=True)
            else:
                stream = os.fdopen(number, mode, closefd=False)
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
    return lost


class LostOutput(io.TextIOWrapper):
    """A standard output that nobody reads."""

    is_lost = False

    def write(self, text: str) -> int:
        self.is_lost = self.is_lost or bool(text)
        return super().write(text)


def is_told() -> bool:
    """Return whether a command may report its progress and the next steps on standard error."""
    return os.environ.get(UNTOLD) != "off"


@contextmanager
def told_if_long(name: str) -> Iterator[None]:
    """Print on standard error what is being done, if it takes some seconds; above a bar on a terminal."""
    timer = threading.Timer(TOLD_AFTER_SECONDS, show, [escape_controls(name), sys.stderr])
    timer.daemon = True
    if is_told():
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def escape_controls(text: str, keep: str = "") -> str:
    """Escape control characters, line ends, bidirectional marks and invisible characters, as in `\\x1b`.

    Args:
        keep: characters to leave as they are.
    """
    return _replace_hidden(text, keep, lambda character: character.encode("unicode_escape").decode("ascii"))


def show(text: object, file: TextIO | None = None, keep: str = "") -> None:
    """Print a line, escaped on a terminal and unchanged elsewhere.

    Elsewhere, a path that is not UTF-8 keeps its bytes.

    Args:
        file: standard output by default.
        keep: characters not to escape, such as "\\n" for a text of several lines.
    """
    file = sys.stdout if file is None else file
    text = str(text)
    if file.isatty():
        text = escape_controls(text, keep + JOINERS)
    try:
        file.write(f"{text}\n")
    except UnicodeEncodeError:
        file.flush()
        if file.isatty():  # its encoding lacks some of the characters
            encoded = text.encode(file.encoding, "backslashreplace")
        else:
            try:
                encoded = os.fsencode(text)
            except UnicodeEncodeError:  # a lone surrogate that no path contains
                encoded = text.encode("utf-8", "backslashreplace")
        file.buffer.write(encoded + b"\n")
    file.flush()


def show_json(document: str, file: TextIO | None = None) -> None:
    """Print a JSON document, with hidden characters escaped on a terminal and unchanged elsewhere.

    If the encoding of the file cannot represent it, as with a lone surrogate, everything but ASCII is escaped.
    """
    file = sys.stdout if file is None else file
    escaped = _replace_hidden(document, "\n" + JOINERS, lambda character: json.dumps(character)[1:-1])  # as in \u202e
    try:
        file.write(f"{escaped if file.isatty() else document}\n")
    except UnicodeEncodeError:
        file.write("".join(c if c.isascii() else json.dumps(c)[1:-1] for c in escaped) + "\n")


def show_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print a traceback on standard error, as a `sys.excepthook`.

    It is escaped because its message may quote a name, and without credentials, since it may quote an address.
    """
    text = hide_credentials("".join(traceback.format_exception(kind, error, trace)).rstrip("\n"))
    show(text, sys.stderr, keep="\n\t")


def hide_credentials(text: str) -> str:
    """Return a text, such as a message of a library, without the credentials in the addresses that it quotes.

    These are users and passwords before an @, tokens and signatures in a query, and, wherever they occur, the passwords
    in the addresses that environment variables hold: libraries quote parts of an address, too.

    >>> hide_credentials("No answer from http://me:secret@host/api?token=abc&x=1")
    'No answer from http://***@host/api?token=***&x=1'
    """
    text = hide_in_addresses(text)
    values = (value for value in os.environ.values() if "@" in value)
    passwords = [password for value in values for password in re.findall(f"://{_PASSWORD_IN_TEXT}", value)]
    found = {*passwords, *map(unquote, passwords)}  # as written and decoded
    for secret in sorted((secret for secret in found if len(secret) >= LEAST_SECRET), key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text


def hide_in_addresses(text: str) -> str:
    return QUERY_SECRET.sub(rf"\1{HIDDEN}", _USER_IN_TEXT.sub(rf"\1{HIDDEN}@", text))


def abridge(text: str) -> str:
    """Truncate a text that is too long to quote in a message."""
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}... ({len(text):,} characters)"


class EscapingFormatter(logging.Formatter):
    """Log formatter that escapes messages, and hides credentials in the addresses that they quote.

    Only tracebacks and messages of libraries keep their line breaks.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:
        keep = "" if record.name.partition(".")[0] == PACKAGE else "\n\t"
        return escape_controls(hide_credentials(super().formatMessage(record)), keep + JOINERS)

    def formatException(self, ei) -> str:
        return escape_controls(hide_credentials(super().formatException(ei)), "\n\t" + JOINERS)


def _replace_hidden(text: str, keep: str, spell: Callable[[str], str]) -> str:
    if text.isascii() and text.isprintable():
        return text
    written = []
    for character in text:
        is_hidden = unicodedata.category(character) in _HIDDEN_CATEGORIES or ord(character) in _INVISIBLE
        written.append(spell(character) if is_hidden and character not in keep else character)
    return "".join(written)


# Escape untrusted text (labels, names of runs, paths) for Markdown, and write tables.
#
# Source: CommonMark 0.31 (backslash escapes, code spans, raw HTML) and GitHub's tables.

# An underscore or a # within a word and an & that begins no entity are not markup.
_MARKUP = re.compile(r"[\\`*\[|~$]|(?<![^\W_])_|_(?![^\W_])|(?<!\S)#")
_HTML = {"<": "&lt;", ">": "&gt;", "&": "&amp;"}  # entities: renderers without support for `\<` pass it on as a tag
_HTML_MARKUP = re.compile(r"[<>]|&(?=#?\w+;)")


def escape_markdown(text: str) -> str:
    """Escape text for a table cell, a heading or the inside of a sentence: one line, shown literally."""
    text = _MARKUP.sub(r"\\\g<0>", escape_controls(text, JOINERS))
    return _HTML_MARKUP.sub(lambda found: _HTML[found[0]], text)


def code_span(text: str) -> str:
    """Return text as a code span, with enough backticks to enclose its own; not for cells, which `|` would end."""
    text = escape_controls(text, JOINERS)
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    padding = " " if text[:1] in ("`", " ") or text[-1:] in ("`", " ") else ""
    return f"{fence}{padding}{text}{padding}{fence}"


def as_markdown(rows: Sequence[Sequence[str]], alignments: Sequence[str] | None = None) -> str:
    """Write rows of plain text as a Markdown table; the first row is the header.

    Args:
        alignments: `---` or `---:` for each column; by default all columns but the first are right-aligned.
    """
    header, *others = ([escape_markdown(cell) for cell in row] for row in rows)
    ruler = alignments or ["---"] + ["---:"] * (len(header) - 1)
    return "\n".join("| " + " | ".join(row) + " |" for row in (header, ruler, *others))


# Tables for a terminal: cells are wrapped to its width, and long paths are shortened to the names of their files.

MOST_COLUMNS, LEAST_COLUMNS = 100, 40
GAP = 2  # columns between two cells


def find_columns() -> int | None:
    """Return the width for a text: that of the terminal, at most 100 columns; None where standard output is none."""
    if not sys.stdout.isatty():
        return None
    return max(LEAST_COLUMNS, min(MOST_COLUMNS, shutil.get_terminal_size().columns))


def fit(rows: Sequence[Sequence[str]], columns: int) -> str:
    """Align rows, with cells that are too long for the width wrapped; nothing is cut away."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, GAP, 0, 0))
    for _ in rows[0]:
        grid.add_column(overflow="fold")
    for row in rows:
        grid.add_row(*(Text(escape_controls(cell, JOINERS)) for cell in row))
    file = io.StringIO()
    Console(file=file, width=columns, color_system=None, legacy_windows=False).print(grid)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def name_files(values: Sequence[Any]) -> list[Any]:
    """Return values with each absolute path shortened to its file name, or to as many folders more as tell them apart.

    >>> name_files(["/data/a/train.tsv", "/data/b/train.tsv", 3])
    ['…/a/train.tsv', '…/b/train.tsv', 3]
    """
    for depth in count(1):  # paths with no more parts are left whole
        named = [_shorten(value, depth) for value in values]
        if len({repr(value) for value in named}) == len({repr(value) for value in values}):
            break
    return named


def _shorten(value: Any, depth: int) -> Any:
    if isinstance(value, list | tuple):
        return [_shorten(item, depth) for item in value]
    if not isinstance(value, str) or not os.path.isabs(value) or len(parts := value.split("/")) <= depth + 1:
        return value
    return ("…/" if depth > 1 else "") + "/".join(parts[-depth:])
