"""Describe the rejected text of a corpus: how much, for which reason, in which files, and what to do.

Readers count `lines_rejected_<reason>` and `bytes_rejected_<reason>` (`text/corpus/lines.py`), and for skipped files
`files_rejected_<reason>` and their known bytes. Bytes are those of the decompressed file, line ends included.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

NAMED_FILES = 3  # per reason, those with the most rejected bytes


@dataclass(frozen=True)
class Reason:
    """Why text is rejected.

    Attributes:
        unit: what is rejected as a whole, `line`, `row` or `file`.
        what: follows "3 lines " in a message.
        remedy: a sentence.
    """

    unit: str
    what: str
    remedy: str


REASONS = {
    "not_utf8": Reason("line", "not UTF-8", "Convert text to UTF-8, as by iconv -f LATIN1 -t UTF-8."),
    "too_long": Reason(
        "line", "longer than corpus.max_line_bytes", "Break long lines into paragraphs, or set corpus.max_line_bytes."
    ),
    "nul": Reason(
        "line", "with NUL bytes, as in binary files and UTF-16", "Leave out binary files; convert UTF-16 to UTF-8."
    ),
    "not_json_with_text": Reason(
        "line", "not a JSON object with the text field", "Name the field that holds the text in corpus.text_field."
    ),
    "lone_surrogate": Reason(
        "line",
        "with half of a surrogate pair (\\ud800 to \\udfff), which is no character",
        "Write the text again with whole characters: something cut it inside one, such as an emoji.",
    ),
    "null": Reason("row", "without a value", "Leave out rows without text."),
    "unreadable": Reason("file", "that cannot be opened", "Restore the files."),
    "damaged": Reason("file", "that cannot be read to the end", "Restore the files."),
}


def rejected_bytes(counters: Mapping[str, int]) -> dict[str, int]:
    """Return the rejected bytes by reason, for the reasons that occurred."""
    return {reason: counters.get(f"bytes_rejected_{reason}", 0) for reason in REASONS if _units(counters, reason)}


def rejected_share(counters: Mapping[str, int]) -> float:
    """Return the share of the bytes of a corpus that were rejected; 0.0 if there are none."""
    read = counters.get("bytes_read", 0)
    return sum(rejected_bytes(counters).values()) / read if read else 0.0


def describe_rejected(counters: Mapping[str, int], files: Sequence[tuple[str, str, int]] = ()) -> str:
    """Describe the rejected text as part of a sentence; an empty string if nothing was rejected.

    Args:
        counters: counters of the readers.
        files: (reason, path, rejected bytes) of each file with rejected text, if known.
    """
    by_reason = rejected_bytes(counters)
    if not by_reason:
        return ""
    parts = (_describe(reason, count, counters, files) for reason, count in by_reason.items())
    lost, percent = sum(by_reason.values()), 100 * rejected_share(counters)
    return f"{lost:,} of {counters.get('bytes_read', 0):,} bytes ({percent:.2f} %) rejected: {'; '.join(parts)}"


def advise(counters: Mapping[str, int]) -> str:
    """Return what to do about the rejected text, the reason with the most bytes first."""
    by_reason = rejected_bytes(counters)
    ordered = sorted(by_reason, key=by_reason.__getitem__, reverse=True)
    return " ".join(dict.fromkeys(REASONS[reason].remedy for reason in ordered))


def check_rejected(counters: Mapping[str, int], max_share: float, files: Sequence[tuple[str, str, int]] = ()) -> None:
    """Raise ValueError if too much of a corpus was rejected.

    Raises:
        ValueError: more than `max_share` of the bytes; the message says why, where, and what to do.
    """
    if rejected_share(counters) > max_share:
        raise ValueError(
            f"At most {100 * max_share:.4g} % of the bytes of a corpus may be rejected. "
            f"Received: {describe_rejected(counters, files)}. {advise(counters)} Or allow it by --max-rejected-share=1 "
            "(corpus.max_rejected_share)."
        )


def explain_lack(counters: Mapping[str, int]) -> tuple[str, str]:
    """Return why a corpus has too little text, and what to do about it.

    Args:
        counters: counters of the readers, and of the job if it counts `documents_without_tokens` and
            `duplicate_documents`.
    """
    if not counters.get("bytes_read") and not rejected_bytes(counters):
        return "all of it empty", "Check the input."
    empty = counters.get("documents_without_tokens", 0)
    copies = counters.get("duplicate_documents", 0)
    facts = {
        describe_rejected(counters): advise(counters),
        "blank lines only" if counters.get("lines_blank") == counters.get("lines_read") else "": "Check the input.",
        f"{empty:,} of controls, format characters or accents alone" if empty else "": "Check the encoding.",
        f"{copies:,} copies of others" if copies else "": "Give more different documents.",
    }
    facts.pop("", None)
    return ", ".join(facts), " ".join(facts.values()) or "Put blank lines between documents."


def _describe(reason: str, count: int, counters: Mapping[str, int], files: Sequence[tuple[str, str, int]]) -> str:
    units, unit = _units(counters, reason), REASONS[reason].unit
    text = f"{count:,} bytes in {units:,} {unit}{'s' * (units != 1)} {REASONS[reason].what}"
    found = sorted((-file_bytes, path) for of, path, file_bytes in files if of == reason)
    if not found:
        return text
    names = ", ".join(path for _, path in found[:NAMED_FILES])
    more = len(found) - NAMED_FILES
    return f"{text} ({names}" + (f" and {more:,} more file{'s' * (more != 1)})" if more > 0 else ")")


def _units(counters: Mapping[str, int], reason: str) -> int:
    kind = "files" if REASONS[reason].unit == "file" else "lines"
    return counters.get(f"{kind}_rejected_{reason}", 0)
