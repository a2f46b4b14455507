"""Names that mean something to a terminal, to rich, to Markdown or to HTML."""

import unicodedata

HOSTILE = (
    "\x1b]0;pwned\x07",
    "\x9b31m\u2028red",
    "\u202eevil\u2066",
    "a|b\\|c\\",
    "<img src=x onerror=alert(1)>",
    "[red]x[/red]",
    "[/x]",
    "`tick` ``two``",
    "[click](javascript:alert(1)) ![i](http://x.example/i.png)",
    "*b* __u__ ~~s~~ $x$ &lt; #",
    "two\nlines",
)


def hidden_in(text: str, allowed: str = "\n") -> set[str]:
    """Return the control, bidirectional and other format characters of a text, those that are allowed aside."""
    return {c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")} - set(allowed)
