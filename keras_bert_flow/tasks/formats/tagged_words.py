"""Sentences as words with tags: splitting into words, and the schemes of tags."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from keras_bert_flow.tasks.formats.rows import abridge
from keras_bert_flow.text.tokenizers.normalization import is_han, is_punctuation

# Split raw text into words with offsets, as in tables of tagged words.

JOINERS = frozenset("-\u2010\u2011'\u2019.&/@_\u00b7")  # between two letters or digits they do not split a word
JOINERS_OF_DIGITS = frozenset(",:")  # 1,000 and 12:30


class Word(NamedTuple):
    """A word of a text: `text[start:end]`."""

    text: str
    start: int
    end: int


def split_words(text: str) -> list[Word]:
    """Split text at blanks, Han characters and punctuation marks; only blanks are dropped.

    A mark within a word, as in Jean-Pierre, U.S or 3.5, does not split it, as in tables of tagged words: their labels
    are on first pieces, so a model has not learnt to tag what follows such a mark.

    Returns:
        The words, in order; `text[word.start:word.end] == word.text`, with only blanks between them.
    """
    words = []
    for chunk in re.finditer(r"\S+", text):
        characters, start = chunk.group(), chunk.start()
        if characters.isalnum() and characters.isascii():  # most words
            words.append(Word(characters, start, chunk.end()))
            continue
        alone = [_stands_alone(characters, place) for place in range(len(characters))]
        borders = [place for place in range(1, len(characters)) if alone[place - 1] or alone[place]]
        for first, end in zip([0, *borders], [*borders, len(characters)], strict=True):
            words.append(Word(characters[first:end], start + first, start + end))
    return words


def _stands_alone(characters: str, place: int) -> bool:
    """Return whether a character is a word of its own: Han, or a mark that does not join the characters beside it."""
    character = characters[place]
    if is_han(character) or not is_punctuation(character):
        return is_han(character)
    if not 0 < place < len(characters) - 1:
        return True
    before, after = characters[place - 1], characters[place + 1]
    if character in JOINERS_OF_DIGITS:
        return not (before.isdigit() and after.isdigit())
    return character not in JOINERS or any(is_punctuation(side) or is_han(side) for side in (before, after))


# Tagging schemes IOB1, IOB2, BIOES and plain: read spans from tags, and write tags for spans.

OUTSIDE = "O"
PREFIXES = {"IOB1": "BI", "IOB2": "BI", "BIOES": "BIES"}
PLAIN = "plain"  # each tag is a type, as in part-of-speech tagging: a span is one word
SCHEMES = (*PREFIXES, PLAIN)


_PREFIXED = re.compile(r"(?P<letter>[BIESLUM])(?P<mark>[-_:/.|=+])(?P<type>.+)", re.IGNORECASE)
_SUFFIXED = re.compile(r"(?P<type>.+)(?P<mark>[-_:/.|=+])(?P<letter>[BIESLUM])", re.IGNORECASE)


class Spelling(NamedTuple):
    """Another spelling of a scheme: its name, a tag in it, and what makes it one of `SCHEMES`."""

    scheme: str
    example: str
    remedy: str


class Span(NamedTuple):
    """A typed span of words, from `first` to before `end`."""

    type: str
    first: int
    end: int


def spans_of(tags: Sequence[str], scheme: str, strict: bool = False) -> list[Span]:
    """Return the spans of a sentence, from left to right.

    Args:
        strict: return only spans that are well-formed in the scheme, as in seqeval's strict mode. Otherwise an I
            without a beginning, or of another type than the word before, begins a span itself, as in conlleval; E and
            S, which conlleval does not know, are read as in seqeval's default mode.
    Raises:
        ValueError: a tag is not in the scheme.
    Source: conlleval (E. Tjong Kim Sang), `startOfChunk` and `endOfChunk`; seqeval 1.2.2, metrics and scheme.
    """
    if scheme == PLAIN:
        return [Span(tag, place, place + 1) for place, tag in enumerate(tags) if tag != OUTSIDE]
    for tag in tags:
        if not is_tag(tag, scheme):
            raise ValueError(
                f"A tag must be one of {describe_scheme(scheme)}. Received: {tag!r}. Correct it, or name its scheme."
            )
    return _strict_spans(tags, scheme) if strict else _lenient_spans(tags)


def tags_of(spans: Iterable[Span], length: int, scheme: str) -> list[str]:
    """Return the tags of a sentence of `length` words that has these spans.

    Raises:
        ValueError: spans overlap or lie outside the sentence; or the scheme is plain and one has several words.
    """
    tags, before = [OUTSIDE] * length, Span("", 0, 0)
    for span in sorted(spans, key=lambda span: span.first):
        if not before.end <= span.first < span.end <= length:
            raise ValueError(
                f"Spans must stand apart, within their sentence of {length} words. Received: {tuple(span)} after "
                f"{tuple(before)}. Drop one of them."
            )
        tags[span.first : span.end] = _tags_of_span(span, before, scheme)
        before = span
    return tags


def find_fault(tags: Sequence[str], scheme: str) -> int | None:
    """Return the index of the first tag that the scheme does not allow there; None if all are legal."""
    legal = tags_of(spans_of(tags, scheme, strict=True), len(tags), scheme)
    return next((place for place, tag in enumerate(tags) if tag != legal[place]), None)


def detect_scheme(sentences: Sequence[Sequence[str]], place: Callable[[int, int], str]) -> str:
    """Detect the tagging scheme of sentences.

    Args:
        sentences: the tags of each.
        place: describes the location of a word in a message, from the numbers of sentence and word.
    Raises:
        ValueError: some tags are plain and others are not, no scheme allows every sentence, or the tags are those of a
            scheme in another spelling; see `find_other_spelling`.
    """
    tags = {tag for sentence in sentences for tag in sentence}
    strange = {tag for tag in tags if not is_tag(tag, "BIOES")}
    if not tags - {OUTSIDE}:
        raise ValueError(f"Tags must tell words apart. Received: only {abridge(tags) or 'none'}. Check the tag column.")
    if spelling := find_other_spelling(tags):
        odd = next((n, w) for n, tags in enumerate(sentences) for w, tag in enumerate(tags) if tag == spelling.example)
        raise ValueError(
            f"{place(*odd)}: spans must be tagged in IOB or BIOES, as B-PER, I-PER and O. Received: "
            f"{spelling.example!r}, which looks like {spelling.scheme}. {spelling.remedy}. Or set `task.scheme: plain`"
            ": each tag is then a class, and there are no spans."
        )
    if strange and not any(tag[1:2] == "-" for tag in tags - strange):
        return PLAIN
    schemes = ("BIOES",) if any(tag[0] in "ES" for tag in tags) else ("IOB2", "IOB1")
    faults = {scheme: _find_faults(sentences, strange, scheme) for scheme in schemes}
    scheme = min(schemes, key=lambda scheme: len(faults[scheme]))  # the first of ties: IOB2
    if not faults[scheme]:
        return scheme
    sentence, word = faults[scheme][0]
    received = sentences[sentence]
    around = " ".join(received[max(word - 1, 0) : word + 2])
    raise ValueError(
        f"{place(sentence, word)}: tags must be legal in a scheme, and these fit {scheme} best. "
        f"Received: {received[word]!r} in {around!r}; {len(faults[scheme])} of {len(sentences)} sentences are not "
        "legal. Correct them, or name the `scheme`: they are then read as conlleval reads them."
    )


def guess_scheme(tags: Sequence[str]) -> str:
    """Return the tagging scheme of a head's labels; IOB1 and IOB2, which decode alike, are not distinguished."""
    if not any(tag.startswith(("B-", "I-", "S-", "E-")) for tag in tags):
        return PLAIN
    return next((scheme for scheme in ("IOB2", "BIOES") if all(is_tag(tag, scheme) for tag in tags)), PLAIN)


def find_other_spelling(tags: Iterable[str]) -> Spelling | None:
    """Return how the tags of spans are spelt if not as here: B_PER, b-per, PER-B, BILOU or BMES; None if they are not.

    At least half of the tags, apart from O, must look like tags of spans, or they are taken for plain ones.
    """
    inside = sorted({tag for tag in tags if tag not in (OUTSIDE, OUTSIDE.lower())})
    letters = {tag.upper() for tag in inside}
    if inside and letters <= {*"BMES"} and "M" in letters and letters & {*"BE"}:
        return Spelling("BMES without types", "M" if "M" in inside else "m", "Write I for M, which makes it BIOES")
    for pattern in (_PREFIXED, _SUFFIXED):
        found = {tag: match for tag in inside if (match := pattern.fullmatch(tag))}
        odd = [tag for tag in found if not is_tag(tag, "BIOES")]
        if odd and 2 * len(found) >= len(inside):
            return _describe_spelling(odd, found)
    if OUTSIDE.lower() in tags and inside and all(is_tag(tag, "BIOES") for tag in inside):
        return Spelling("a scheme whose O is in lower case", OUTSIDE.lower(), "Write O")
    return None


def _describe_spelling(odd: Sequence[str], found: Mapping[str, re.Match[str]]) -> Spelling:
    letters = {match["letter"].upper() for match in found.values()}
    if any(found[tag].re is _SUFFIXED for tag in odd):
        return Spelling("a scheme whose letter is at the end", odd[0], "Put the letter first: B-PER for PER-B")
    other_marks = [tag for tag in odd if found[tag]["mark"] != "-"]
    if other_marks:
        mark = found[other_marks[0]]["mark"]
        return Spelling(f"a scheme with {mark!r} for the hyphen", other_marks[0], "Write B-PER, with a hyphen")
    lower = [tag for tag in odd if found[tag]["letter"].islower()]
    if lower:
        return Spelling("a scheme in lower case", lower[0], "Write the letters in capitals: B-, I- and O")
    name, remedy = "BILOU", "Write S- for U- and E- for L-, which makes it BIOES"
    if "M" in letters:
        name, remedy = "BMES", "Write I- for M-, which makes it BIOES"
    return Spelling(name, odd[0], remedy)


def tag_names(tags: Iterable[str], scheme: str) -> tuple[str, ...]:
    """Return all tags of the scheme for the types of these tags, O first, including tags that do not occur here."""
    if scheme == PLAIN:
        return tuple(sorted(set(tags)))
    types = sorted({split_tag(tag)[1] for tag in tags if tag != OUTSIDE})
    return (OUTSIDE, *(_join(prefix, type_) for type_ in types for prefix in PREFIXES[scheme]))


@lru_cache(maxsize=4096)
def is_tag(tag: str, scheme: str) -> bool:
    """Return whether a tag is in a scheme: O, or a letter of the scheme, alone or with a type as in B-PER."""
    if scheme == PLAIN or tag == OUTSIDE:
        return True
    prefix, type_ = split_tag(tag)
    return prefix in PREFIXES[scheme] and len(prefix) == 1 and tag == _join(prefix, type_)


def describe_scheme(scheme: str) -> str:
    """Describe the tags of a scheme, for messages."""
    return "any" if scheme == PLAIN else f"{scheme}: O, {', '.join(f'{letter}-type' for letter in PREFIXES[scheme])}"


@lru_cache(maxsize=4096)
def split_tag(tag: str) -> tuple[str, str]:
    """Split B-PER into B and PER; a type may contain hyphens, or be empty."""
    prefix, _, type_ = tag.partition("-")
    return prefix, type_


def _lenient_spans(tags: Sequence[str]) -> list[Span]:
    spans, first, before, type_before = [], 0, OUTSIDE, ""
    for place, tag in enumerate([*tags, OUTSIDE]):
        prefix, type_ = split_tag(tag)
        begins = prefix in "BSO" or before in "ESO" or type_ != type_before
        if begins:
            if before != OUTSIDE:
                spans.append(Span(type_before, first, place))
            first = place
        before, type_before = prefix, type_
    return spans


def _strict_spans(tags: Sequence[str], scheme: str) -> list[Span]:
    cells = [("O", ""), *map(split_tag, tags), ("O", "")]
    inside = "IE" if scheme == "BIOES" else "I"
    spans, place = [], 1
    while place <= len(tags):
        first = place
        place += 1
        before, cell = cells[first - 1], cells[first]
        begins = cell[0] in "BS"
        if scheme == "IOB1":
            # B separates adjacent spans of one type, and is illegal elsewhere. An I after an illegal B begins a span.
            touches = before[0] != OUTSIDE and before[1] == cell[1]
            begins = touches if cell[0] == "B" else cell[0] == "I" and (not touches or before[0] == "B")
        if not begins:
            continue
        while cells[place - 1][0] in "BI" and cells[place - 1][1] == cells[place][1] and cells[place][0] in inside:
            place += 1
        last, after = cells[place - 1], cells[place]
        # In IOB1, seqeval has no rule by which a B ends a preceding B of another type: neither of them counts there.
        is_cut_off = scheme == "IOB1" and last[0] == after[0] == "B" and last[1] != after[1]
        is_closed = last[0] in "ES" if scheme == "BIOES" else not is_cut_off
        if is_closed:
            spans.append(Span(cell[1], first - 1, place - 1))
    return spans


def _tags_of_span(span: Span, before: Span, scheme: str) -> list[str]:
    length = span.end - span.first
    if scheme == PLAIN:
        if length > 1:
            raise ValueError(f"A plain tag is of one word. Received: {tuple(span)}. Take IOB2 or BIOES.")
        return [span.type]
    if scheme == "BIOES":
        letters = "S" if length == 1 else "B" + "I" * (length - 2) + "E"
    else:
        touches = before.end == span.first > 0 and before.type == span.type
        letters = ("B" if scheme == "IOB2" or touches else "I") + "I" * (length - 1)
    return [_join(letter, span.type) for letter in letters]


def _join(prefix: str, type_: str) -> str:
    return f"{prefix}-{type_}" if type_ else prefix


def _find_faults(sentences: Sequence[Sequence[str]], strange: set[str], scheme: str) -> list[tuple[int, int]]:
    """Return (sentence, word) of the first tag of each sentence that is not in the scheme or not legal there."""
    faults = []
    for number, tags in enumerate(sentences):
        odd = next((place for place, tag in enumerate(tags) if tag in strange), None)
        fault = find_fault(tags, scheme) if odd is None else odd
        if fault is not None:
            faults.append((number, fault))
    return faults


@dataclass(frozen=True)
class TaggedWords:
    """A sentence as words, optionally tagged.

    Attributes:
        words: as written.
        tags: one per word; None if the sentence is not tagged.
        path: file that it was read from, for messages.
        rows: line of the file of each word, from 1; empty if not read from a file.
        text: the original text, if the words were split from one.
        offsets: start and end of each word in `text`, in characters; empty if there is no `text`.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...] | None = None
    path: str = ""
    rows: tuple[int, ...] = ()
    text: str | None = None
    offsets: tuple[tuple[int, int], ...] = ()

    @property
    def inputs(self) -> dict[str, list[str]]:
        return {"words": list(self.words)}

    @property
    def gold(self) -> tuple[str, ...] | None:
        return self.tags

    def place(self, word: int) -> str:
        """Describe the location of a word, for messages."""
        if self.rows:
            return f"{self.path}, row {self.rows[word]}"
        return f"{self.path or 'sentence'} {' '.join(self.words[:5])!r}, word {word + 1}"

    def written(self) -> tuple[str, tuple[tuple[int, int], ...]]:
        """Return the text and the offsets of its words; words without a text are joined by single spaces."""
        if self.text is not None:
            return self.text, self.offsets
        offsets, start = [], 0
        for word in self.words:
            offsets.append((start, start + len(word)))
            start += len(word) + 1
        return " ".join(self.words), tuple(offsets)

    def show_spans(self, spans: Iterable[Span]) -> list[dict[str, Any]]:
        """Return the type of each span, its position in words and in characters, and its text."""
        text, offsets = self.written()
        places = [(span, offsets[span.first][0], offsets[span.end - 1][1]) for span in spans]
        return [
            {
                "type": span.type,
                "first_word": span.first,
                "end_word": span.end,
                "start": start,
                "end": end,
                "text": text[start:end],
            }
            for span, start, end in places
        ]


def gold_tags(examples: Sequence[TaggedWords]) -> list[tuple[str, ...]]:
    """Return the tags of each sentence.

    Raises:
        ValueError: a sentence is not tagged.
    """
    tags = []
    for example in examples:
        if example.tags is None:
            raise ValueError(
                f"A sentence must have tags here. Received: {abridge([' '.join(example.words)])!r}, without. "
                "Read the table with labels."
            )
        tags.append(example.tags)
    return tags
