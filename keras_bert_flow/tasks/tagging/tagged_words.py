"""A sentence as words, optionally with a tag for each."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from keras_bert_flow.tasks.formats.rows import abridge
from keras_bert_flow.tasks.tagging.tag_schemes import Span
from keras_bert_flow.tasks.tagging.word_splitting import split_words


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

    @classmethod
    def from_text(cls, text: str) -> "TaggedWords":
        """Split a text into untagged words with offsets."""
        words = split_words(text)
        return cls(
            words=tuple(word.text for word in words),
            text=text,
            offsets=tuple((word.start, word.end) for word in words),
        )

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
