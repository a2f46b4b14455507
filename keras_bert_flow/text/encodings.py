"""Say how a file in another encoding becomes UTF-8."""

import shlex
from codecs import BOM_UTF16_BE, BOM_UTF16_LE

LEAST_NUL_SHARE = 0.25  # of the bytes of UTF-16 without a byte order mark; half of them for Latin letters


def suggest_conversion(content: bytes, path: str = "FILE") -> str:
    """Return a command that converts text to UTF-8 from the encoding that it seems to have.

    Libraries that guess encodings were tried: of a few sentences in windows-1252, shift_jis or windows-1251, most were
    taken for others. UTF-16 can be told; otherwise the reader has to say.

    Args:
        content: the first bytes of a file that is not UTF-8, or a line of it.
        path: of the file.
    """
    encoding = guess_utf16(content)
    if encoding:
        return f"Convert it with {rewrite(f'iconv -f {encoding} -t UTF-8', path)}."
    return (
        f"Convert it with {rewrite('iconv -f ENCODING -t UTF-8', path)}, where ENCODING is that of the program which "
        "wrote it: WINDOWS-1252 in Western Europe, WINDOWS-1251 for Cyrillic, SHIFT_JIS, GB18030 and so on."
    )


def guess_utf16(content: bytes) -> str:
    """Return iconv's name of the UTF-16 that the first bytes of a file seem to be in; "" if they do not."""
    if content.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
        return "UTF-16"  # iconv reads the mark
    if content.count(0) < LEAST_NUL_SHARE * len(content) or not content:
        return ""
    return "UTF-16BE" if content[::2].count(0) > content[1::2].count(0) else "UTF-16LE"


def rewrite(command: str, path: str) -> str:
    """Return a shell command that writes what a filter makes of a file, which may be gzipped, to the file NEW."""
    name = path if path == "FILE" else shlex.quote(path)
    return f"gunzip -c {name} | {command} > NEW" if path.endswith(".gz") else f"{command} < {name} > NEW"
