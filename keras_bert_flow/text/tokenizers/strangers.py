"""Check a `tokenizer.json` of unknown origin before it is used: what it may cost in memory and time, and panics.

The library `tokenizers` runs what the file says: a replacement may multiply a text, a regular expression may take
unlimited time, and some errors are panics of Rust, which print pages and are no `Exception`. What may do so is refused
by name. Components that are neither known to be harmless nor refused are tried in a child process with limits.
"""

import base64
import binascii
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from keras_bert_flow.terminal import abridge

MAX_GROWTH = 64  # characters that normalisation may make of one; NFKC makes 18 of U+FDFA
MAX_PREPENDED = 16  # characters put before a text
MAX_PATTERN = 1_000  # characters
MAX_WORD = 10_000  # characters of a word that WordPiece tries to split, in time quadratic in them
TRIAL_BYTES, TRIAL_SECONDS = 4 << 30, 30
HARMLESS = {  # besides those that are looked into below
    *("BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "Nmt", "Strip", "StripAccents", "ByteLevel"),
    *("BertPreTokenizer", "CharDelimiterSplit", "Digits", "Metaspace", "Punctuation", "Whitespace", "WhitespaceSplit"),
    *("BertProcessing", "RobertaProcessing", "TemplateProcessing", "Sequence", "Replace", "Prepend", "Split"),
    *("BPE", "Unigram", "WordLevel", "WordPiece"),
}
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
KNOWN_PATTERNS = {  # of GPT-2 in two forms, of o200k, of cl100k and Llama 3, and of Qwen 2
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_ENDING}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_ENDING}|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    *(
        rf"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|"
        r"\s*[\r\n]+|\s+(?!\S)|\s+"
        for digits in (r"\p{N}{1,3}", r"\p{N}")
    ),
}
_ATOM = r"(?:\\[pP]\{\^?\w+\}|\\[nrtsSdDwW\W]|\[\^?(?:\\[pP]\{\^?\w+\}|\\.|[^\\\[\]&]|&(?!&))+\]|[^\\()\[\]{}*+?|^$])"
_BRANCH = rf"(?:{_ATOM}\??)*?{_ATOM}(?:\+|\{{[1-9]\d{{0,2}}(?:,\d{{0,3}})?\}})?"
# Alternatives whose only repetition comes last: such a pattern takes linear time, and does not match nothing.
SIMPLE_PATTERN = re.compile(rf"{_BRANCH}(?:\|{_BRANCH})*")
_TRIAL = f"""
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, ({TRIAL_BYTES}, {TRIAL_BYTES}))
resource.setrlimit(resource.RLIMIT_CPU, ({TRIAL_SECONDS}, {TRIAL_SECONDS}))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
import tokenizers
tokenizer = tokenizers.Tokenizer.from_str(sys.stdin.buffer.read().decode())
texts = ["x" * 1000, " " * 1000, "(" * 1000, "a, b! c? 1.5 (d) e-f " * 50, "\\n\\t\\r" * 100]
texts += ["".join(chr(code) for code in range(first, first + 256)) for first in range(0, 0xd800, 256)]
for text in texts:
    tokenizer.encode(text, add_special_tokens=False)
tokenizer.encode("a", "a")
"""


def check_pipeline(content: Mapping[str, Any], text: str, source: str) -> None:
    """Raise ValueError if a `tokenizer.json` may need much more memory or time than the text that it is given.

    Args:
        content: the parsed content.
        text: the same as text.
        source: path of the file, for messages.
    """
    model: Any = content.get("model")
    model = model if isinstance(model, dict) else {}
    if model.get("dropout"):
        _refuse(source, "model.dropout", "0: it makes other tokens of a text each time", model["dropout"])
    longest = model.get("max_input_chars_per_word", 0)
    if type(longest) is not int or longest > MAX_WORD:
        _refuse(source, "model.max_input_chars_per_word", f"at most {MAX_WORD:,}", longest)
    growth, kinds = 1.0, {model.get("type", "BPE")}
    for stage in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        for part in _walk(content.get(stage)):
            kind = part.get("type")
            if kind == "TemplateProcessing" and not _is_whole(part):
                kind = "TemplateProcessing with undefined tokens"
            kinds |= {kind} if stage != "decoder" else set()
            if kind in ("Replace", "Split"):
                _check_pattern(part.get("pattern"), f"{stage}.pattern", source)
            if kind == "Prepend" and len(str(part.get("prepend"))) > MAX_PREPENDED:
                _refuse(source, f"{stage}.prepend", f"at most {MAX_PREPENDED} characters", part.get("prepend"))
            growth *= max(1.0, _measure_growth(part)) if stage != "post_processor" else 1.0
            if growth > MAX_GROWTH:
                rule = f"a rule that makes at most {MAX_GROWTH} characters of one"
                _refuse(source, stage, rule, f"{kind}, up to {growth:,.0f}")
    if not kinds <= HARMLESS:
        _try(text, source)


@contextmanager
def trying(source: str) -> Iterator[None]:
    """Turn what the library raises into a ValueError; its panics are no `Exception`.

    Args:
        source: path of the file, for the message.
    """
    try:
        yield
    except (ValueError, OSError, KeyboardInterrupt):
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise ValueError(f"{source}: no tokenizer ({abridge(_join(str(error)))}). Copy or save it again.") from None


@lru_cache(maxsize=8)
def _try(text: str, source: str) -> None:
    """Load a tokenizer and encode some texts in a child process with limits of memory and time."""
    command = [sys.executable, "-c", _TRIAL]
    try:
        done = subprocess.run(command, input=text.encode(), capture_output=True, timeout=2 * TRIAL_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise ValueError(f"{source}: no tokenizer (loading it takes too long). Copy or save it again.") from None
    if done.returncode:
        lines = [line for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
        reason = lines[-1] if lines else f"its trial ended with status {done.returncode}"
        raise ValueError(f"{source}: no tokenizer ({abridge(reason)}). Copy or save it again.")


def _walk(part: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the components of a stage; those of a sequence one by one."""
    if not isinstance(part, dict):
        return
    if part.get("type") != "Sequence":
        yield part
        return
    for name in ("normalizers", "pretokenizers", "processors", "decoders"):
        for inner in part.get(name) or ():
            yield from _walk(inner)


def _is_whole(template: Mapping[str, Any]) -> bool:
    """Return whether a template defines every special token that it uses."""
    known = template.get("special_tokens")
    pieces = [*(template.get("single") or ()), *(template.get("pair") or ())]
    used = {piece["SpecialToken"].get("id") for piece in pieces if isinstance(piece, dict) and "SpecialToken" in piece}
    return isinstance(known, dict) and used <= known.keys()


def _check_pattern(pattern: Any, name: str, source: str) -> None:
    expression = pattern.get("Regex") if isinstance(pattern, dict) else None
    if expression is None or expression in KNOWN_PATTERNS:
        return
    if not isinstance(expression, str) or len(expression) > MAX_PATTERN or not SIMPLE_PATTERN.fullmatch(expression):
        rule = "a text, or a regular expression whose time is known to be bounded, such as a repeated character"
        _refuse(source, name, rule, expression)


def _measure_growth(part: Mapping[str, Any]) -> float:
    """Return a bound of the characters that a component makes of one."""
    if part.get("type") == "Replace":
        pattern = part.get("pattern")
        found = pattern.get("String") if isinstance(pattern, dict) else pattern
        size = len(str(part.get("content", "")))
        return size / len(found) if isinstance(found, str) and found else size + 1.0
    if part.get("type") == "Precompiled":
        return _measure_charsmap(part.get("precompiled_charsmap"))
    return 1.0


def _measure_charsmap(encoded: Any) -> float:
    """Return the length of the longest replacement in a table of SentencePiece.

    Source: google/sentencepiece, normalizer.cc, `DecodePrecompiledCharsMap`: the size of a trie, the trie, and the
    replacements, each with a NUL at its end.
    """
    try:
        table = base64.b64decode(encoded or "", validate=True)
    except (binascii.Error, TypeError, ValueError):
        return 1.0  # the trial refuses it
    texts = table[4 + int.from_bytes(table[:4], "little") :].split(b"\0")
    return float(max(len(text.decode(errors="replace")) for text in texts))


def _refuse(source: str, name: str, rule: str, received: Any) -> None:
    raise ValueError(
        f"{source}: `{name}` must be {rule}. Received: {abridge(ascii(received))}. Use a model that you trust."
    )


def _join(message: str) -> str:
    return " ".join(message.split())
