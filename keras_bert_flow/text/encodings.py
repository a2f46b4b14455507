"""Say how a file in another encoding becomes UTF-8."""

from codecs import BOM_UTF16_BE, BOM_UTF16_LE


def suggest_conversion(content: bytes) -> str:
    """Return a command that converts text to UTF-8 from the encoding that it seems to have.

    Libraries that guess encodings were tried: of a few sentences in windows-1252, shift_jis or windows-1251, most were
    taken for others. UTF-16 can be told; otherwise the reader has to say.

    Args:
        content: the first bytes of a file that is not UTF-8, or a line of it.
    """
    if content.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
        return "Convert it with iconv -f UTF-16 -t UTF-8 FILE > NEW."
    return (
        "Convert it with iconv -f ENCODING -t UTF-8 FILE > NEW, where ENCODING is that of the program which wrote it: "
        "WINDOWS-1252 in Western Europe, WINDOWS-1251 for Cyrillic, SHIFT_JIS, GB18030 and so on."
    )
