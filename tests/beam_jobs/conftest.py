"""A small corpus of documents whose words say which document they are from, and the folder contents to compare."""

import random
from pathlib import Path

import numpy as np
import pytest

from beam_jobs.build_records import build_records
from beam_jobs.exchange import choose_exchange
from keras_bert_flow.config.text import CorpusConfig, RecordsConfig
from keras_bert_flow.results.manifest import COSTS
from keras_bert_flow.text.vocabulary import SPECIAL_PIECES, write_vocabulary
from tests.beam_jobs.quick_beam import remember_arguments, remember_options, remember_states

remember_options()
remember_states()
remember_arguments()

DOCUMENTS = 170  # two pools to train on
SMALL = {"sequence_length": 32, "max_predictions": 5, "duplication": 2, "held_out_fraction": 0.2, "shards": 2}


def make_documents(documents: int = DOCUMENTS) -> list[list[str]]:
    """Return documents of one to eight sentences of words like `d7s2`, each of them in the text once."""
    rng = np.random.default_rng(0)
    return [
        [
            " ".join([f"d{number}s{sentence}", *rng.choice(list("abcdefg"), rng.integers(1, 9))])
            for sentence in range(rng.integers(1, 9))
        ]
        for number in range(documents)
    ]


def as_text(documents: list[list[str]]) -> str:
    return "\n\n".join("\n".join(sentences) for sentences in documents) + "\n"


def make_corpus(path: Path, text: str | bytes | None = None, **settings) -> CorpusConfig:
    """Write a corpus of one file and return its configuration."""
    content = as_text(make_documents()) if text is None else text
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return CorpusConfig(**{"input": (str(path),), "lines": "sentences"} | settings)


def make_records_config(**settings) -> RecordsConfig:
    return RecordsConfig(**SMALL | settings)


def build(corpus, vocabulary_file, output, seed=1, options=(), **settings):
    return build_records(corpus, make_records_config(**settings), vocabulary_file, False, output, seed, options)


def make_pairs() -> list[tuple[int, list[bytes]]]:
    """Return items of three of six buckets, each of them twice."""
    rng = random.Random(0)
    return [
        (rng.choice((0, 1, 4)), [rng.randbytes(rng.choice((0, 1, 30, 3000))) for _ in range(rng.choice((1, 1, 3)))])
        for _ in range(300)
    ] * 2


def read_folder(folder: Path) -> dict[str, bytes]:
    """Return the content of every file of a folder by name, but for the notes of what it cost."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != COSTS]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def names_in(folder: Path) -> list[str]:
    """Return all that lies in a folder, hidden or not, but for the notes of what it cost."""
    return sorted(path.name for path in folder.iterdir() if path.name != COSTS)


@pytest.fixture
def vocabulary_file(tmp_path) -> Path:
    """Write a vocabulary in which a sentence's first word is one piece, and return its path."""
    words = [sentence.split()[0] for document in make_documents() for sentence in document]
    filler = [f"[unused{number}]" for number in range(300)]  # so that ids are sparse in the vocabulary
    path = tmp_path / "words.txt"
    write_vocabulary(path, [*SPECIAL_PIECES, *filler, *"abcdefg", *words])
    return path


@pytest.fixture(params=["files", "engine"])
def exchange(request, tmp_path):
    """Return each exchange."""
    return choose_exchange([f"--exchange={request.param}"], tmp_path)


@pytest.fixture
def corpus(tmp_path):
    return make_corpus(tmp_path / "a.txt")


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """Build the small records once, for the tests that only look at them."""
    folder = tmp_path_factory.mktemp("built")
    words = [sentence.split()[0] for document in make_documents() for sentence in document]
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"[unused{n}]" for n in range(300)), *"abcdefg", *words]
    write_vocabulary(folder / "words.txt", pieces)
    return build(make_corpus(folder / "a.txt"), folder / "words.txt", folder / "records")
