"""The code blocks of the documentation, and what is said of running them.

A block without a language, or with `bash`, holds commands; `console` a session whose commands stand after `$ `;
`python` code. They are run by tests/test_documented_blocks.py, unless a comment right above the block, which no
rendered page shows, says why not:

    <!-- not run: REASON -->                  the whole block
    <!-- not run (kbf push): REASON -->       of a block the commands that begin so; as many lines as are needed
    <!-- run by tests/FILE.py -->             the whole block, by a test of its own
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
COMMANDS, SESSION, PYTHON = ("", "bash"), "console", "python"
SHOWN = ("text", "yaml")  # nothing to run
FENCE = re.compile(
    r"(?P<marks>(?:^ *<!--[^\n]*-->\n)*)^(?P<indent> *)```(?P<language>\w*)\n(?P<body>.*?)^(?P=indent)```$",
    re.DOTALL | re.MULTILINE,
)
NOT_RUN = re.compile(r"<!-- not run(?: \((?P<start>[^)]+)\))?:(?P<reason>.*)-->")
RUN_ELSEWHERE = re.compile(r"<!-- run by (?P<file>\S+) -->")


class Block(NamedTuple):
    """A code block of a page.

    Attributes:
        place: page and line, to be found.
        parts: its commands, or all of its code as one.
        reasons: by the beginning of a command why it is not run; by "" why the block is not.
        run_by: the test that runs the block, a path from the root, or "".
        unread: marks that are none of the above.
    """

    place: str
    language: str
    parts: tuple[str, ...]
    reasons: dict[str, str]
    run_by: str
    unread: tuple[str, ...]

    def to_run(self) -> list[str]:
        """Return the parts that are to be run, none where the whole block is marked."""
        if self.run_by or "" in self.reasons:
            return []
        return [part for part in self.parts if not any(part.startswith(start) for start in self.reasons)]


def read_blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for fence in FENCE.finditer(text):
        marks = [line.strip() for line in fence["marks"].splitlines()]
        reasons = {found["start"] or "": found["reason"].strip() for mark in marks if (found := NOT_RUN.match(mark))}
        run_by = [found["file"] for mark in marks if (found := RUN_ELSEWHERE.match(mark))]
        unread = [mark for mark in marks if not NOT_RUN.match(mark) and not RUN_ELSEWHERE.match(mark)]
        place = f"{page.relative_to(ROOT)}:{text.count(chr(10), 0, fence.start('language')) + 1}"
        parts = tuple(split(fence["language"], fence["body"]))
        yield Block(place, fence["language"], parts, reasons, "".join(run_by), tuple(unread))


def split(language: str, body: str) -> list[str]:
    """Return the commands of a block, lines that end in a backslash with the next, or its code as one."""
    if language == PYTHON:
        return [body]
    lines = [line.strip() for line in re.sub(r"\\\n\s*", "", body).splitlines()]
    if language == SESSION:
        return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    if language in COMMANDS:
        return [line for line in lines if line and not line.startswith("#")]
    return []
