"""Read the tables of a Markdown document."""

import re


def read_tables(text: str) -> list[list[tuple[str, ...]]]:
    """Return the rows of each table, with the header and without the line below it."""
    tables = re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE)
    rows = [
        [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in table.splitlines()] for table in tables
    ]
    return [[table[0], *table[2:]] for table in rows]
