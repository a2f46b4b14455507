"""Detect what a path contains, and examine it."""

from collections.abc import Callable
from pathlib import Path

from keras_bert_flow.checks.corpus import examine_corpus
from keras_bert_flow.checks.findings import Diagnosis
from keras_bert_flow.checks.records import SAMPLE, examine_records
from keras_bert_flow.checks.vocabulary import examine_vocabulary
from keras_bert_flow.config.text import CorpusConfig
from keras_bert_flow.records.tfrecord import RECORD_SUFFIX
from keras_bert_flow.results.manifest import MANIFEST, read_manifest
from keras_bert_flow.results.publishing import verify
from keras_bert_flow.text.tokenizers.files import find_case, read_tokenizer_file
from keras_bert_flow.text.tokenizers.settings import FAST_TOKENIZER, Said, read_said
from keras_bert_flow.text.vocabulary import SPECIAL_PIECES, VOCABULARY_FILE, read_vocabulary

_LOOKED_AT_BYTES = 65536  # the special pieces of every published vocabulary are in the first thousand
_KINDS = "a corpus, a vocabulary or a folder of records"


def diagnose(
    path: str,
    corpus: CorpusConfig,
    vocabulary_file: str | Path | None = None,
    cased: bool | None = None,
    sample: int = SAMPLE,
    advance: Callable[[float], None] | None = None,
) -> Diagnosis:
    """Examine a corpus (file, folder or glob), a vocabulary (file or folder) or a folder of records.

    Args:
        path: where it is.
        corpus: how the lines of a corpus are read.
        vocabulary_file: for the tokens of a corpus, or for records whose folder has none.
        cased: the vocabulary keeps case. None: for a vocabulary as in its folder, or else guessed; otherwise uncased.
        sample: most records to read.
        advance: called now and then with the number of further bytes read from a corpus.
    Raises:
        FileNotFoundError: the path does not exist.
        ValueError: it is none of these, the given vocabulary is unusable, or a corpus or vocabulary differs from the
            manifest of its folder.
    """
    kind, place = find_kind(path)
    if kind == "records":
        return examine_records(place, vocabulary_file, sample)
    verify(place, *([vocabulary_file] if vocabulary_file else []))
    if kind == "vocabulary":
        said = _read_said(Path(place))
        return examine_vocabulary(place, said.cased if cased is None else cased, said.rules)
    tokenizer = None
    if vocabulary_file:
        tokenizer = read_tokenizer_file(vocabulary_file, find_case(vocabulary_file, cased))
    return examine_corpus(place, corpus, bool(cased), tokenizer, advance)


def find_kind(path: str) -> tuple[str, str]:
    """Return (`corpus`, `vocabulary` or `records`, the file, folder or glob to examine).

    Raises:
        ValueError: the folder or file is none of these.
    """
    place = Path(path)
    if place.is_dir():
        return _find_kind_of_folder(place)
    if path.endswith(RECORD_SUFFIX) and place.is_file():
        raise ValueError(f"Records are examined by folder. Received: {path}, a file. Give {place.parent}.")
    if place.is_file() and (place.name.endswith(VOCABULARY_FILE) or _looks_like_vocabulary(place)):
        return "vocabulary", path
    return "corpus", path


def _read_said(vocabulary: Path) -> Said:
    """Return what the files beside a vocabulary say of it; nothing if one is damaged."""
    try:
        return read_said(vocabulary, read_vocabulary(vocabulary))
    except ValueError:
        return Said()


def _find_kind_of_folder(folder: Path) -> tuple[str, str]:
    stage = None
    if (folder / MANIFEST).is_file():
        try:
            stage = read_manifest(folder).stage
        except ValueError:  # damaged; the examination will say so
            stage = "records" if any(folder.glob(f"*{RECORD_SUFFIX}")) else None
    if stage == "records" or any(folder.glob(f"*{RECORD_SUFFIX}")):
        return "records", str(folder)
    if stage == "corpus":
        return "corpus", str(folder)
    if (folder / VOCABULARY_FILE).is_file():
        return "vocabulary", str(folder / VOCABULARY_FILE)
    if (folder / FAST_TOKENIZER).is_file():
        raise ValueError(
            f"The doctor examines {_KINDS}. Received: {folder}, a tokenizer without vocab.txt. Give it as "
            f"`--vocab {folder / FAST_TOKENIZER}` with records or a corpus."
        )
    if stage is not None:
        raise ValueError(f"The doctor examines {_KINDS}. Received: {folder}, which holds {stage}.")
    return "corpus", str(folder)


def _looks_like_vocabulary(path: Path) -> bool:
    """Return whether most special pieces are on lines of their own near the beginning."""
    with open(path, "rb") as file:
        lines = {line.rstrip(b"\r") for line in file.read(_LOOKED_AT_BYTES).split(b"\n")}
    return sum(piece.encode() in lines for piece in SPECIAL_PIECES) >= 3
