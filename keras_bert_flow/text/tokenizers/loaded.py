"""Tokenizers of other families, loaded from `tokenizer.json`, which is checked before it is used."""

import base64
import binascii
import json
import re
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from keras_bert_flow.console.terminal import abridge
from keras_bert_flow.files.documents import Read, parse_json, read_file
from keras_bert_flow.text.tokenizers.normalization import replace_surrogates
from keras_bert_flow.text.tokenizers.settings import (
    FAST_TOKENIZER,
    NORMALIZER_NAMES,
    check_settings,
    list_configured,
    pad_right,
    read_settings,
)
from keras_bert_flow.text.tokenizers.tokenizer import Offsets, Tokenizer
from keras_bert_flow.text.tokenizers.wordpiece import SETTINGS

# Check a `tokenizer.json` of unknown origin before it is used: what it may cost in memory and time, and panics.
#
# The library `tokenizers` runs what the file says: a replacement may multiply a text, a regular expression may take
# unlimited time, and some errors are panics of Rust, which print pages and are no `Exception`. What may do so is
# refused by name. Components that are neither known to be harmless nor refused are tried in a child process with
# limits.

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
            kind = _check_part(part, stage, source)
            kinds |= {kind} if stage != "decoder" else set()
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
        reason = " ".join(str(error).split())
        raise ValueError(f"{source}: no tokenizer ({abridge(reason)}). Copy or save it again.") from None


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


def _check_part(part: Mapping[str, Any], stage: str, source: str) -> Any:
    """Raise ValueError for a long prefix or an unknown pattern, and return the kind of a component.

    The kind of a template also says if it does not define every special token that it uses.
    """
    kind = part.get("type")
    if kind == "TemplateProcessing":
        known = part.get("special_tokens")
        pieces = [*(part.get("single") or ()), *(part.get("pair") or ())]
        special = (piece["SpecialToken"] for piece in pieces if isinstance(piece, dict) and "SpecialToken" in piece)
        used = {token.get("id") for token in special}
        return kind if isinstance(known, dict) and used <= known.keys() else f"{kind} with undefined tokens"
    if kind == "Prepend" and len(str(part.get("prepend"))) > MAX_PREPENDED:
        _refuse(source, f"{stage}.prepend", f"at most {MAX_PREPENDED} characters", part.get("prepend"))
    pattern = part.get("pattern") if kind in ("Replace", "Split") else None
    expression = pattern.get("Regex") if isinstance(pattern, dict) else None
    if expression is None or expression in KNOWN_PATTERNS:
        return kind
    if not isinstance(expression, str) or len(expression) > MAX_PATTERN or not SIMPLE_PATTERN.fullmatch(expression):
        rule = "a text, or a regular expression whose time is known to be bounded, such as a repeated character"
        _refuse(source, f"{stage}.pattern", rule, expression)
    return kind


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


# BERT's names of the special tokens → their possible spellings; the first one in the vocabulary is used.
SPECIAL_NAMES = {
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<s>"),
    "sep": ("[SEP]", "</s>"),
    "mask": ("[MASK]", "<mask>"),
}
WORD_MARKS = ("Ġ", "▁")  # of byte-level BPE and of SentencePiece: a space before the piece


class LoadedTokenizer(Tokenizer):
    """Tokenizer of a `tokenizer.json`, encoding text as `tokenizers` does; see `Tokenizer`.

    Args:
        content: content of `tokenizer.json`.
        settings: content of `tokenizer_config.json`, which may name the special tokens.
        source: path of the former, for messages.
    Raises:
        ValueError: the content is damaged, ids have gaps, a special token is missing, or texts are not joined as [CLS]
            A [SEP] B [SEP] with one or more [SEP] in the middle.
    """

    cased = True  # its own normalizer decides

    def __init__(self, content: str, settings: Mapping[str, object] | None = None, source: str = FAST_TOKENIZER):
        self._content, self._settings, self._source = content, dict(settings or {}), source
        check_settings(self._settings, source, is_word_piece=False)
        self._parsed = _parse(content, source)
        check_pipeline(self._parsed, content, source)
        _check_agreement(self._parsed, self._settings, source)
        self._tokenizer = self._load(self._parsed, content)
        ids = self._tokenizer.get_vocab(with_added_tokens=True)
        self.pieces = tuple(sorted(ids, key=ids.__getitem__))
        if sorted(ids.values()) != list(range(len(ids))):
            raise ValueError(f"{source}: must number its pieces from 0, each once. Copy or save it again.")
        found = {name: self._find_special(name, ids) for name in SPECIAL_NAMES}
        self.special_ids = tuple(ids[token] for token in found.values())
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = self.special_ids
        self.mask_token = found["mask"]
        added = [token for token in self._parsed.get("added_tokens") or () if isinstance(token, dict)]
        self.mask_lstrip = any(token.get("lstrip") is True for token in added if token["content"] == self.mask_token)
        freed = _free_added(self._parsed, {*found.values()})
        if freed is not None:
            self._tokenizer = self._load(freed, json.dumps(freed))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._tokenizer.encode_special_tokens = True
        self.separators = self._count_separators()
        marks = any(piece.startswith(WORD_MARKS) for piece in self.pieces)
        self.starts_word = np.array(
            [piece.startswith(WORD_MARKS) if marks else not piece.startswith("##") for piece in self.pieces]
        )

    @classmethod
    def from_file(cls, path: Path, read: Read = read_file) -> "LoadedTokenizer":
        """Read a `tokenizer.json`, with what `tokenizer_config.json` and the like next to it say."""
        content = read(path, -1).decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
        return cls(content, read_settings(path.parent, read), str(path))

    def __reduce__(self):
        return LoadedTokenizer, (self._content, self._settings, self._source)

    @property
    def strips_accents(self) -> bool:
        """Whether its normalizer drops marks that are part of a letter, here a vowel sign of Thai."""
        normalizer = self._tokenizer.normalizer
        return normalizer is not None and "\u0e35" not in normalizer.normalize_str("\u0e17\u0e35")

    def encode(self, text: str) -> np.ndarray:
        return self._take_ids(self._encode(text))

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        with trying(self._source):
            found = self._tokenizer.encode_batch(list(map(replace_surrogates, texts)), add_special_tokens=False)
        return [self._take_ids(encoding) for encoding in found]

    def encode_word(self, word: str) -> np.ndarray:
        return self.encode(f" {word}")

    def encode_with_offsets(self, text: str) -> Offsets:
        encoding = self._encode(text)
        offsets = np.array(encoding.offsets, dtype=np.int32).reshape(-1, 2)
        for place, (start, end) in enumerate(offsets):  # a piece may include the space before its word
            piece = text[start:end]
            offsets[place, 0] = end - len(piece.lstrip()) if piece.strip() else start
        return self._take_ids(encoding), offsets[:, 0], offsets[:, 1]

    def decode(self, ids: Iterable[int], skip_special: bool = False) -> str:
        skipped = self.special_ids if skip_special else ()
        return self._tokenizer.decode([int(i) for i in ids if i not in skipped], skip_special_tokens=False)

    def append(self, text: str, piece: str) -> str:
        if piece.startswith(WORD_MARKS):
            return f"{text.rstrip()} {piece[1:]}".lstrip()
        return text.rstrip() + piece.removeprefix("##") if text else piece

    def write(self, folder: Path) -> None:
        (folder / FAST_TOKENIZER).write_text(self._content, encoding="utf-8")
        names = dict(zip(SPECIAL_NAMES, (self.pieces[i] for i in self.special_ids), strict=True))
        settings = self._settings or {f"{name}_token": token for name, token in names.items()}
        (folder / SETTINGS).write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        pad_right(folder)

    def describe(self) -> dict[str, Any]:
        described = {name: self._parsed.get(name) for name in ("normalizer", "pre_tokenizer", "added_tokens")}
        model = json.dumps(self._parsed["model"], sort_keys=True).encode()
        return described | {"kind": FAST_TOKENIZER, "model": sha256(model).hexdigest(), "special": self.special_ids}

    def _load(self, parsed: Mapping[str, Any], content: str) -> tokenizers.Tokenizer:
        """Return the tokenizer of the library, with the added tokens that only `tokenizer_config.json` has."""
        with trying(self._source):
            tokenizer = tokenizers.Tokenizer.from_str(content)
        ids = tokenizer.get_vocab(with_added_tokens=True)
        known = {token.get("content") for token in parsed.get("added_tokens") or () if isinstance(token, dict)}
        special = {name for spellings in SPECIAL_NAMES.values() for name in spellings}
        for number, piece in list_configured(self._settings, self._source):
            if piece.content in known | special:
                continue
            expected = ids.get(piece.content, tokenizer.get_vocab_size())
            if number not in (-1, expected):
                raise ValueError(
                    f"{self._source}: added tokens must have the ids that follow those of the vocabulary. Received: "
                    f"{abridge(ascii(piece.content))} as {number}, not {expected}. Save the tokenizer again."
                )
            tokenizer.add_tokens([replace(piece, special=False).make()])
        return tokenizer

    def _encode(self, text: str) -> tokenizers.Encoding:
        with trying(self._source):
            return self._tokenizer.encode(replace_surrogates(text), add_special_tokens=False)

    def _take_ids(self, encoding: tokenizers.Encoding) -> np.ndarray:
        """Return the ids; a special token that a Unigram model finds in a text becomes [UNK]."""
        ids = np.array(encoding.ids, dtype=np.int32)
        ids[np.isin(ids, self.special_ids)] = self.unk_id
        return ids

    def _find_special(self, name: str, ids: Mapping[str, int]) -> str:
        given = self._settings.get(f"{name}_token")
        given = given.get("content") if isinstance(given, dict) else given
        known = [token for token in (given, *SPECIAL_NAMES[name]) if isinstance(token, str)]
        token = next((token for token in known if token in ids), None)
        if token is None:
            raise ValueError(
                f"{self._source}: must have a token for {name}, such as {' or '.join(SPECIAL_NAMES[name])}. Received: "
                f"none of them. Name it as `{name}_token` in {SETTINGS}."
            )
        return token

    def _count_separators(self) -> int:
        with trying(self._source):
            encoding = self._tokenizer.encode("a", "a")
        texts = [place for place, text in enumerate(encoding.sequence_ids) if text is not None]
        if not texts:
            raise ValueError(
                f"{self._source}: must make tokens of the text `a`. Received: none. Copy or save it again."
            )
        middle = [place for place in range(texts[0], texts[-1]) if encoding.sequence_ids[place] is None]
        ids = encoding.ids
        around = (*ids[: texts[0]], *ids[texts[-1] + 1 :])
        if around != (self.cls_id, self.sep_id) or not middle or {ids[place] for place in middle} != {self.sep_id}:
            joined = " ".join(encoding.tokens)
            raise ValueError(
                f"{self._source}: must join two texts as [CLS] A [SEP] B [SEP]. Received: {joined}. It is of another "
                "kind of model."
            )
        return len(middle)


def _parse(content: str, source: str) -> dict[str, Any]:
    try:
        parsed = parse_json(content)
    except ValueError as error:
        raise ValueError(f"{source}: no tokenizer ({abridge(str(error))}). Copy or save it again.") from None
    if not isinstance(parsed, dict) or not isinstance(parsed.get("model"), dict):
        raise ValueError(f"{source}: no tokenizer (it has no `model`). Copy or save it again.")
    return parsed


def _check_agreement(parsed: Mapping[str, Any], settings: Mapping[str, Any], source: str) -> None:
    """Raise ValueError where `transformers` would take what `tokenizer_config.json` says over `tokenizer.json`."""
    for stage, names in (("pre_tokenizer", {"add_prefix_space": "add_prefix_space"}), ("normalizer", NORMALIZER_NAMES)):
        part = parsed.get(stage)
        if not isinstance(part, dict):
            continue
        for ours, theirs in names.items():
            if isinstance(settings.get(ours), bool) and settings[ours] != part.get(theirs, settings[ours]):
                raise ValueError(
                    f"{source}: must agree with {SETTINGS}. Received: `{stage}.{theirs}` {str(part[theirs]).lower()}, "
                    f"and `{ours}` {str(settings[ours]).lower()} there. Correct the one that is wrong."
                )


def _free_added(parsed: Mapping[str, Any], special: Collection[str]) -> dict[str, Any] | None:
    """Return the content in which only the five special tokens are special, so that others are found in a text.

    None if that is so already.
    """
    added = [token for token in parsed.get("added_tokens") or () if isinstance(token, dict)]
    if all(token.get("content") in special for token in added if token.get("special")):
        return None
    freed = [token | {"special": token.get("special") and token.get("content") in special} for token in added]
    return {**parsed, "added_tokens": freed}
