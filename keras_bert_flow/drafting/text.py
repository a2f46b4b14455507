"""Inspect a corpus: its size, its scripts, and how it is divided into lines and documents."""

import os
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from keras_bert_flow.config.corpus import CorpusConfig
from keras_bert_flow.doctor.corpus import CorpusCounts
from keras_bert_flow.planning.corpus_sample import read_sample
from keras_bert_flow.tasks.formats.rows import read_objects
from keras_bert_flow.text.corpus.sentences import split_sentences
from keras_bert_flow.text.tokenizers.lost_characters import TOLD_SHARE, lost_share

JSON_SUFFIXES = (".jsonl", ".jsonl.gz")
SENTENCES_OF_A_PARAGRAPH = 1.3  # minimum mean number of sentences per line for lines to be paragraphs
SCRIPTS_WITHOUT_SPACES = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN", "JAVANESE")


@dataclass(frozen=True)
class CorpusLook:
    """Statistics of a corpus, estimated from a sample.

    Attributes:
        files: number of files.
        file_bytes: total size on disk.
        total_bytes: total size, uncompressed.
        documents: estimated number of documents in all files.
        line_words: mean number of words per line in the sample.
        document_lines: mean number of lines per document.
        characters: number of distinct characters in the sample.
        scripts: (name, share of the letters), most common first.
        lines: `paragraphs` or `sentences`.
        text_field: field of the text in .jsonl.
        counts: the doctor's counts for the sample.
    """

    files: int
    file_bytes: int
    total_bytes: float
    documents: float
    line_words: float
    document_lines: float
    characters: int
    scripts: tuple[tuple[str, float], ...]
    lines: str
    text_field: str
    counts: CorpusCounts

    @property
    def has_letter_marks(self) -> bool:
        """Whether marks that uncased text loses are parts of letters in more than a few characters."""
        return lost_share(self.counts.lost, "stripped_characters") >= TOLD_SHARE

    @property
    def has_spaces(self) -> bool:
        """Whether most of the text has spaces between words."""
        return sum(share for name, share in self.scripts if name in SCRIPTS_WITHOUT_SPACES) < 0.5


def look_at_corpus(files: Sequence[str]) -> CorpusLook:
    """Return statistics of text files, from a sample.

    Raises:
        ValueError: the sample holds no document.
    """
    field = _find_field(files)
    sample = read_sample(CorpusConfig(input=tuple(files), lines="sentences", text_field=field), files)
    documents = sample.documents  # their sentences are the unsplit lines
    if not documents:
        raise ValueError(
            f"A corpus must hold documents. Received: {files[0]}{' and others' * (len(files) > 1)}, in the first "
            "megabyte of which there is none. `kbf doctor` says what is wrong."
        )
    lines = [line for document in documents for line in document.sentences]
    letters = Counter(character for line in lines for character in line if character.isalpha())
    sentences = sum(len(split_sentences(line)) for line in lines)
    counts = CorpusCounts(cased=False)
    is_cut = sentences < SENTENCES_OF_A_PARAGRAPH * len(lines)
    for document in documents:
        counts.add_document(document.sentences, split_lines=not is_cut)
    return CorpusLook(
        files=len(files),
        file_bytes=sum(os.path.getsize(path) for path in files),
        total_bytes=sample.total_bytes,
        documents=len(documents) * sample.total_bytes / max(1, sample.read_bytes),
        line_words=counts.words.total / len(lines),
        document_lines=len(lines) / len(documents),
        characters=len({character for line in lines for character in line}),
        scripts=_name_scripts(letters),
        lines="sentences" if is_cut else "paragraphs",
        text_field=field,
        counts=counts,
    )


def _find_field(files: Sequence[str]) -> str:
    """Return the field with the text in .jsonl: `text`, else the one whose first values are longest."""
    path = next((path for path in files if path.endswith(JSON_SUFFIXES)), None)
    if path is None:
        return "text"
    lengths: Counter = Counter()
    for _, fields in islice(read_objects(Path(path)), 100):
        lengths.update({name: len(value) for name, value in fields.items() if isinstance(value, str)})
    return "text" if "text" in lengths or not lengths else lengths.most_common(1)[0][0]


def _name_scripts(letters: Counter) -> tuple[tuple[str, float], ...]:
    """Return the scripts of letters, by the first word of their Unicode names, with their shares."""
    scripts: Counter = Counter()
    for character, count in letters.items():
        scripts[unicodedata.name(character, "?").split()[0]] += count
    total = scripts.total()
    return tuple((name, count / total) for name, count in scripts.most_common(3))
