"""Escape untrusted text (labels, names of runs, paths) for Markdown, and write tables.

Source: CommonMark 0.31 (backslash escapes, code spans, raw HTML) and GitHub's tables.
"""

import re
from collections.abc import Sequence

from keras_bert_flow.terminal import JOINERS, escape_controls

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
