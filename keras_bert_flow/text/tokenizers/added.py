"""Added tokens: pieces that are found in a text before it is split into words, such as `[E1]` before an entity."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Tokenizer, normalizers
from tokenizers.models import WordLevel

from keras_bert_flow.console.terminal import abridge
from keras_bert_flow.text.tokenizers.normalization import replace_surrogates

FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
_REST = "[UNK]"  # what the splitter makes of the text between added tokens


@dataclass(frozen=True)
class AddedPiece:
    """A token as `added_tokens` of a `tokenizer.json` describes it; the fields are those of `tokenizers.AddedToken`."""

    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = True
    special: bool = False

    @classmethod
    def of(cls, value: Any, source: str, special: bool = False) -> "AddedPiece":
        """Read one from a file: its text, or an object with its text and flags.

        Raises:
            ValueError: it is neither.
        """
        fields = {"content": value} if isinstance(value, str) else value
        if isinstance(fields, Mapping) and isinstance(content := fields.get("content"), str) and content:
            is_special = fields.get("special", special)
            flags: dict[str, Any] = {"special": is_special, "normalized": not is_special}
            flags |= {name: fields[name] for name in FLAGS if name in fields}
            if all(isinstance(flag, bool) for flag in flags.values()):
                return cls(content, **flags)
        raise ValueError(
            f"{source}: an added token must be a text, or have a `content` and flags. Received: "
            f"{abridge(ascii(value))}. Copy or save it again."
        )

    def describe(self) -> dict[str, Any]:
        """Return the token as `tokenizer_config.json` holds it."""
        return {"content": self.content} | {name: getattr(self, name) for name in FLAGS}

    def make(self) -> AddedToken:
        """Return the token for `tokenizers`."""
        return AddedToken(self.content, **{name: getattr(self, name) for name in FLAGS})


@dataclass(frozen=True)
class WordRules:
    """What a WordPiece tokenizer does apart from its vocabulary and its case.

    Attributes:
        strip_accents: drop accents; None: if the tokenizer is uncased, as in google-research/bert.
        split_han: every Han character is a word of its own, as in google-research/bert.
        added: tokens that are found in a text before it is split into words, in the order of their ids.
    """

    strip_accents: bool | None = None
    split_han: bool = True
    added: tuple[AddedPiece, ...] = ()

    def make_normalizer(self, cased: bool) -> normalizers.BertNormalizer:
        """Return the normaliser of `tokenizers` with these rules."""
        return normalizers.BertNormalizer(
            handle_chinese_chars=self.split_han, strip_accents=self.strip_accents, lowercase=not cased
        )

    def describe(self) -> dict[str, Any]:
        """Return what differs from google-research/bert, for keys and manifests; empty if nothing does."""
        rules: dict[str, Any] = {} if self.strip_accents is None else {"strip_accents": self.strip_accents}
        rules |= {} if self.split_han else {"tokenize_chinese_chars": False}
        return rules | ({"added_tokens": [piece.describe() for piece in self.added]} if self.added else {})


class AddedSplitter:
    """Find added tokens in a text, by the rules of `tokenizers`.

    Args:
        rules: the tokens, none of which is one of BERT's five special ones, and how text is normalised, since
            `normalized` tokens are found in normalised text.
        cased: the tokenizer keeps case.
        ids: piece → id.
    """

    def __init__(self, rules: WordRules, cased: bool, ids: Mapping[str, int]):
        self._tokenizer = Tokenizer(WordLevel({_REST: 0}, unk_token=_REST))
        self._tokenizer.normalizer = rules.make_normalizer(cased)
        self._tokenizer.add_tokens([piece.make() for piece in rules.added])
        numbers = self._tokenizer.get_vocab(with_added_tokens=True)
        self._ids = {numbers[piece.content]: ids[piece.content] for piece in rules.added}

    def split(self, text: str) -> Iterator[tuple[int, int, int | None]]:
        """Yield the start and end of each part of a text with its id; None for ordinary text between added tokens."""
        encoding = self._tokenizer.encode(replace_surrogates(text), add_special_tokens=False)
        last = 0
        for number, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if number in self._ids:
                if start > last:
                    yield last, start, None
                yield start, end, self._ids[number]
                last = end
        if last < len(text):
            yield last, len(text), None
