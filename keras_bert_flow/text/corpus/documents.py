"""Read documents: separated by blank lines in `.txt`, one per line in `.jsonl`; split them into sentences."""

import hashlib
import io
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import BinaryIO, NamedTuple

from keras_bert_flow.text.corpus.inputs import LOCAL, PARQUET, Storage, input_format, is_remote, open_input, whole_file
from keras_bert_flow.text.corpus.lines import LineReader, ReadingRule
from keras_bert_flow.text.corpus.parquet import read_column

# Rule-based sentence splitting, for alphabets with capitals and for scripts that have marks of their own. No library,
# since records would depend on its version.

# Unicode's `Sentence_Terminal`, and what ends sentences without having it: … ； and the marks of Khmer (which has it
# from Unicode 15.1 on) and Tibetan. Left out: U+104A, which is a comma in modern Burmese.
_SPACED_MARKS = (  # end a sentence where a space follows
    ".!?…؟۔।॥։\u061d\u061e\u0700-\u0702\u07f9\u203c\u203d\u2047-\u2049\u2cf9-\u2cfb\u2e2e\u2e3c\u2e53\u2e54\ufe52\ufe56\ufe57\uff0e"
)
_WIDE_MARKS = (  # end a sentence anywhere: of scripts without capitals, most of which have no spaces between words
    "。！？；\uff61\ufe12\ufe15\ufe16\u0837\u0839\u083d\u083e\u0f0d-\u0f12\u104b\u1362\u1367\u1368\u166e\u1735\u1736\u17d4\u17d5\u1803\u1809"
    "\u1944\u1945\u1aa8-\u1aab\u1b4e\u1b4f\u1b5a\u1b5b\u1b5e\u1b5f\u1b7d-\u1b7f\u1c3b\u1c3c\u1c7e\u1c7f\ua4ff\ua60e\ua60f\ua6f3\ua6f7"
    "\ua876\ua877\ua8ce\ua8cf\ua92f\ua9c8\ua9c9\uaa5d-\uaa5f\uaaf0\uaaf1\uabeb\U00010a56\U00010a57\U00010f55-\U00010f59"
    "\U00010f86-\U00010f89\U00011047\U00011048\U000110be-\U000110c1\U00011141-\U00011143\U000111c5\U000111c6\U000111cd"
    "\U000111de\U000111df\U00011238\U00011239\U0001123b\U0001123c\U000112a9\U0001144b\U0001144c\U000115c2\U000115c3"
    "\U000115c9-\U000115d7\U00011641\U00011642\U0001173c-\U0001173e\U00011944\U00011946\U00011a42\U00011a43\U00011a9b"
    "\U00011a9c\U00011c41\U00011c42\U00011ef7\U00011ef8\U00016a6e\U00016a6f\U00016af5\U00016b37\U00016b38\U00016b44"
    "\U00016e98\U0001bc9f\U0001da88"
)
# A run of marks always gives one match, never a failed one, so a scan takes linear time for any text. Tibetan marks
# may have spaces between them.
_TERMINATOR = re.compile(rf"[{_SPACED_MARKS}{_WIDE_MARKS}]+(?:[ \u00a0]*[\u0f0d-\u0f12]+)*[\"'”’»)\]」』）】》〉]*")
_WIDE = re.compile(f"[{_WIDE_MARKS}]")
_NEXT = re.compile(r"\s*[\"'“‘«(\[{¿¡]*([^\W\d_]+|.)?", re.DOTALL)
_INITIALS = re.compile(r"(?:[^\W\d_]\.)*[^\W\d_]")
_OPENERS = "\"'“‘«([{"
_LONGEST_ABBREVIATION = 24


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_NEVER_LAST = _words(
    "mr mrs ms dr prof st rev fr gen col lt sgt capt cmdr maj adm sen rep gov pres hon mt messrs mme mlle "
    "e.g i.e eg ie cf vs viz approx ca"
)
_SOMETIMES_LAST = _words("jr sr inc co corp ltd bros etc al ph.d d.c dept univ assn est resp ave blvd rd")
_BEFORE_NUMBERS = _words(
    "no nos vol vols fig figs p pp ch chap sec sect art eq eqs ref refs ver "
    "jan feb mar apr jun jul aug sep sept oct nov dec"
)
_STARTERS = _words(
    "The A An In On At By For From With After Before During When While Since Until As If Although Though However But "
    "And Or So Yet Then Thus There Here This That These Those It Its He She His Her We You They Their Our My What Who "
    "Why How Where Which Some Many Most All Each Both No Not One Two Another Other Also"
)


def split_sentences(text: str) -> list[str]:
    """Return the sentences of a text, stripped and not empty, without leaving anything out.

    A sentence ends at . ! ? … and the quotes and brackets that close it, if whitespace follows and the next word does
    not begin in lower case; or anywhere at 。！？； and the marks of scripts without capitals, such as Burmese, Khmer,
    Ethiopic and Tibetan. A full stop does not end a sentence after titles and the like
    (`Dr.`, `e.g.`), after `No.`, `Fig.` or a month before a number, or after a number at the start of the sentence.
    After initials and common abbreviations (`J.`, `U.S.`, `Inc.`) it ends one only before a word that usually begins
    sentences. When in doubt, the rules join two sentences rather than split one.

    Example:
        >>> kbf.split_sentences("Dr. Wu saw it. She left at 5 p.m. and slept!")
        ['Dr. Wu saw it.', 'She left at 5 p.m. and slept!']
    """
    sentences = []
    start = 0
    for match in _TERMINATOR.finditer(text):
        if _ends_sentence(text, start, match):
            sentences.append(text[start : match.end()].strip())
            start = match.end()
    rest = text[start:].strip()
    return [*sentences, rest] if rest else sentences


def _ends_sentence(text: str, start: int, match: re.Match) -> bool:
    if _WIDE.search(match[0]):
        return True
    if match.end() < len(text) and not text[match.end()].isspace():
        return False
    following = _NEXT.match(text, match.end())[1]  # type: ignore[index]  # matches anywhere
    if following is None:
        return True
    if following[0].islower() or following in ".,;:!?…)]}":
        return False
    if match[0].startswith(".") and match[0][1:2] not in (".", "…"):
        return _full_stop_ends_sentence(text, start, match.start(), following)
    return True


def _full_stop_ends_sentence(text: str, start: int, stop: int, following: str) -> bool:
    window = text[max(start, stop - _LONGEST_ABBREVIATION) : stop]
    word = window.split()[-1].lstrip(_OPENERS) if window and not window[-1].isspace() else ""
    if word.lower() in _NEVER_LAST:
        return False
    if word.lower() in _BEFORE_NUMBERS and following[0].isdigit():
        return False
    if word.lower() in _SOMETIMES_LAST or _INITIALS.fullmatch(word):
        return following in _STARTERS
    opens_sentence = stop - start <= _LONGEST_ABBREVIATION and window.strip() == word
    return not (opens_sentence and word.isdecimal())


__all__ = ["Document", "Fault", "ReadingRule", "find_fault", "make_document", "read_documents", "read_texts"]

_PIECE_BYTES = 1 << 20


ID_BYTES = 16  # of the digest that names a document


@dataclass(frozen=True)
class Document:
    """A document as sentences; `id` is the digest of the text, so it does not depend on where the text was found."""

    id: str
    sentences: tuple[str, ...]


def read_documents(path: str, rule: ReadingRule, counts: Counter | None = None) -> Iterator[Document]:
    """Read the documents of one local file; arguments and errors as for `read_texts`."""
    for lines in read_texts(path, rule, counts):
        yield make_document(lines, rule.split_lines)


def read_texts(
    path: str, rule: ReadingRule, counts: Counter | None = None, storage: Storage = LOCAL
) -> Iterator[list[str]]:
    """Yield the lines of each document of one file, holding one document at a time.

    Args:
        path: a corpus file, see `inputs.SUFFIXES`.
        rule: how lines are read.
        counts: counter to which the counts of `LineReader` are added, and `documents`. Every line read is used, blank
            or rejected; every document has text.
        storage: where the file is.
    Raises:
        ValueError: the file cannot be read, or a line is rejected and the rule is strict; the message names file and
            line. Documents before that have been yielded; `find_fault` checks beforehand.
    """
    with open_input(path, storage) as file:
        counts = Counter() if counts is None else counts
        reader = LineReader(file, path, rule, counts)
        documents: Iterator[list[str]]
        if path.endswith(PARQUET):
            documents = map(str.splitlines, reader.read_parquet())
        elif input_format(path).startswith(".jsonl"):
            documents = map(str.splitlines, reader.read_jsonl())
        else:
            documents = _split_text(reader.read_text())
        for lines in documents:
            counts["documents"] += 1
            yield lines


class Fault(NamedTuple):
    """Why a file cannot be read to its end.

    Attributes:
        reason: `unreadable` if it cannot be opened, or `damaged`, which includes a Parquet file without the text
            column.
        message: one line that names the file.
        known_bytes: lost bytes, as far as known: those that could be decompressed or, if more, those on disk.
    """

    reason: str
    message: str
    known_bytes: int


def find_fault(path: str, rule: ReadingRule, storage: Storage = LOCAL) -> Fault | None:
    """Read a file to its end, without using it, and return the fault that prevents that; None if there is none."""
    try:
        file = open_input(path, storage)
    except ValueError as error:
        return Fault("unreadable", str(error), _file_bytes(path, storage))
    unpacked = 0
    with file:
        try:
            for piece in _read_pieces(file, path, rule):
                unpacked += len(piece)
        except ValueError as error:
            return Fault("damaged", str(error), max(unpacked, _file_bytes(path, storage)))
    return None


def make_document(lines: Iterable[str], split_lines: bool) -> Document:
    """Make a document from its lines, without blank sentences."""
    pieces = chain.from_iterable(map(split_sentences, lines)) if split_lines else map(str.strip, lines)
    sentences = tuple(filter(None, pieces))
    digest = hashlib.blake2b("\n".join(sentences).encode(), digest_size=ID_BYTES)
    return Document(digest.hexdigest(), sentences)


def _split_text(lines: Iterable[str]) -> Iterator[list[str]]:
    """Yield the lines of each document, between blank lines."""
    texts: list[str] = []
    for line in lines:
        if line:
            texts.append(line)
        elif texts:
            yield texts
            texts = []
    if texts:
        yield texts


def _read_pieces(file: BinaryIO, path: str, rule: ReadingRule) -> Iterator[bytes]:
    """Yield the decompressed bytes of a file, or the values of its text column."""
    if path.endswith(PARQUET):
        yield from (value or b"" for value in read_column(file, path, rule.text_field))
    else:
        read = getattr(file, "read1", file.read)  # `read` loses the bytes before the damage
        with whole_file(path):
            while piece := read(_PIECE_BYTES):
                yield piece


def _file_bytes(path: str, storage: Storage) -> int:
    """Return the size of a file as stored, 0 if unknown."""
    try:
        with storage.open(path) as file:
            return file.seek(0, io.SEEK_END)
    except (OSError, ValueError):
        try:
            return 0 if is_remote(path) else os.path.getsize(path)
        except OSError:
            return 0
