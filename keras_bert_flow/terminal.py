"""Escape untrusted text (names, labels, outputs of a model) for display: on a terminal, in a message, on a page."""

import io
import json
import logging
import os
import re
import sys
import traceback
import unicodedata
from collections.abc import Callable
from types import TracebackType
from typing import TextIO
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
# user:password@ in the middle of a text, and a user alone, which may be a token. On HDFS it is no secret, and what precedes
# an @ on the Hub is a model.
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
LEAST_SECRET = 4  # characters: shorter ones are too common to hide wherever they occur


def open_streams() -> None:
    """Open the standard streams that are closed, so that no file gets their numbers and every writer finds them.

    Standard input is then empty. What is written to standard output is lost, of which `is_output_lost` tells.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            descriptor = os.open(os.devnull, os.O_RDWR)
            if descriptor != number:  # as when another is closed as well
                os.dup2(descriptor, number)
                os.close(descriptor)
            os.set_inheritable(number, True)
            stream = _LostOutput() if number == 1 else os.fdopen(number, mode, closefd=False)
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)


def is_output_lost() -> bool:
    """Return whether something was written to a standard output that was closed."""
    return isinstance(sys.stdout, _LostOutput) and sys.stdout.is_lost


class _LostOutput(io.TextIOWrapper):
    is_lost = False

    """A standard output that nobody reads."""

    def __init__(self) -> None:
        super().__init__(os.fdopen(1, "wb", closefd=False), encoding="utf-8", errors="replace", write_through=True)

    def write(self, text: str) -> int:
        self.is_lost = self.is_lost or bool(text)
        return super().write(text)


def escape_controls(text: str, keep: str = "") -> str:
    """Escape control characters, line ends, bidirectional marks and invisible characters, as in `\\x1b`.

    Args:
        keep: characters to leave as they are.
    """
    return _replace_hidden(text, keep, lambda character: character.encode("unicode_escape").decode("ascii"))


def escape_json(text: str) -> str:
    """Escape the hidden characters of a JSON document, as in `\\u202e`, which leaves its value the same."""
    return _replace_hidden(text, "\n" + JOINERS, lambda character: json.dumps(character)[1:-1])


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
        file.buffer.write(_encode(text, file) + b"\n")
    file.flush()


def show_json(document: str, file: TextIO | None = None) -> None:
    """Print a JSON document, with hidden characters escaped on a terminal and unchanged elsewhere.

    If the encoding of the file cannot represent it, as with a lone surrogate, everything but ASCII is escaped.
    """
    file = sys.stdout if file is None else file
    try:
        file.write(f"{escape_json(document) if file.isatty() else document}\n")
    except UnicodeEncodeError:
        file.write("".join(c if c.isascii() else json.dumps(c)[1:-1] for c in escape_json(document)) + "\n")


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
    for secret in _list_secrets():
        text = text.replace(secret, HIDDEN)
    return text


def hide_in_addresses(text: str) -> str:
    return QUERY_SECRET.sub(rf"\1{HIDDEN}", _USER_IN_TEXT.sub(rf"\1{HIDDEN}@", text))


def _list_secrets() -> list[str]:
    """Return the passwords in the addresses of environment variables, as written and decoded, the longest first."""
    texts = (value for value in os.environ.values() if "@" in value)
    passwords = [password for text in texts for password in re.findall(f"://{_PASSWORD_IN_TEXT}", text)]
    found = {*passwords, *map(unquote, passwords)}
    return sorted((secret for secret in found if len(secret) >= LEAST_SECRET), key=len, reverse=True)


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
    return "".join(
        spell(character) if _is_hidden(character) and character not in keep else character for character in text
    )


def _is_hidden(character: str) -> bool:
    return unicodedata.category(character) in _HIDDEN_CATEGORIES or ord(character) in _INVISIBLE


def _encode(text: str, file: TextIO) -> bytes:
    if file.isatty():  # its encoding lacks some of the characters
        return text.encode(file.encoding, "backslashreplace")
    try:
        return os.fsencode(text)
    except UnicodeEncodeError:  # a lone surrogate that no path contains
        return text.encode("utf-8", "backslashreplace")
