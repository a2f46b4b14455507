"""Print, as a Markdown table, the characters that the `tokenizers` library's BERT rules treat otherwise than ours.

`python benchmarks/tokenizer_differences.py` takes half a minute. The table depends on the Unicode version of Python and
on that of `tokenizers`; both are named above it.
"""

import argparse
import unicodedata
from collections.abc import Iterator
from itertools import groupby

import tokenizers
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from keras_bert_flow.text.tokenizers.normalization import normalize_text

PRIVATE = "private use: `tokenizers` drops them, the original keeps them"
HAN = "Han of extension E: `tokenizers` begins the block 256 too late and does not set these apart"
VERSION = "assigned or classified otherwise in the two versions of Unicode"


def find_differences(cased: bool) -> dict[str, list[int]]:
    """Return the code points, by reason, that make other words of `a` + character + `b`, or of the character alone."""
    normalizer = BertNormalizer(clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=not cased)
    splitter = BertPreTokenizer()
    found = {PRIVATE: [], HAN: [], VERSION: []}
    for code in range(0x110000):
        character = chr(code)
        kind = unicodedata.category(character)
        if kind == "Cs":  # `tokenizers` takes no lone surrogates
            continue
        text = f"a{character}b {character}"
        theirs = [word for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text))]
        if theirs != normalize_text(text, cased).split():
            found[PRIVATE if kind == "Co" else HAN if 0x2B820 <= code <= 0x2B91F else VERSION].append(code)
    return found


def as_ranges(codes: list[int]) -> Iterator[str]:
    for _, run in groupby(enumerate(codes), lambda item: item[1] - item[0]):
        first, *_, last = [code for _, code in run] * 2
        yield f"{first:04X}" if first == last else f"{first:04X}–{last:04X}"


def make_table() -> str:
    lines = [
        f"Python's Unicode {unicodedata.unidata_version}, `tokenizers` {tokenizers.__version__}:",
        "",
        "| vocabulary | characters | why | code points |",
        "|---|---:|---|---|",
    ]
    for cased in (False, True):
        for reason, codes in find_differences(cased).items():
            name = "cased" if cased else "uncased"
            lines.append(f"| {name} | {len(codes):,} | {reason} | {', '.join(as_ranges(codes))} |")
    return "\n".join(lines)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    print(make_table())
