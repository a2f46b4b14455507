"""Hold a sentence as words, with a tag for each where somebody gave them."""

from dataclasses import dataclass

from keras_bert_flow.tasks.word_splitting import split_words


@dataclass(frozen=True)
class TaggedWords:
    """A sentence in words.

    Attributes:
        words: as written.
        tags: one a word; None where nobody has tagged the sentence.
        path: where it was read, for messages.
        rows: line of the file on which each word stands, from 1; empty where no file was read.
        text: what was written, where the words were split from a text.
        offsets: first character of each word in `text`, and the one after its last; empty where there is no `text`.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...] | None = None
    path: str = ""
    rows: tuple[int, ...] = ()
    text: str | None = None
    offsets: tuple[tuple[int, int], ...] = ()

    @classmethod
    def from_text(cls, text: str) -> "TaggedWords":
        """Split a text into words without tags, which remember where they stood."""
        words = split_words(text)
        return cls(
            words=tuple(word.text for word in words),
            text=text,
            offsets=tuple((word.start, word.end) for word in words),
        )

    def place(self, word: int) -> str:
        """Say in a message where a word stands."""
        if self.rows:
            return f"{self.path}, row {self.rows[word]}"
        return f"{self.path or 'sentence'} {' '.join(self.words[:5])!r}, word {word + 1}"

    def written(self) -> tuple[str, tuple[tuple[int, int], ...]]:
        """Return the text and where its words stand in it; words without a text are joined by single spaces."""
        if self.text is not None:
            return self.text, self.offsets
        offsets, start = [], 0
        for word in self.words:
            offsets.append((start, start + len(word)))
            start += len(word) + 1
        return " ".join(self.words), tuple(offsets)
