"""Make text of others fit for one line of a terminal."""

import unicodedata

MAX_CHARACTERS = 200


def escape_controls(text: str) -> str:
    """Write control characters, line ends and bidirectional marks as escapes such as `\\x1b`."""
    return "".join(
        character.encode("unicode_escape").decode("ascii")
        if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")
        else character
        for character in text
    )


def abridge(text: str) -> str:
    """Cut a text that is longer than a message should quote."""
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}... ({len(text):,} characters)"
