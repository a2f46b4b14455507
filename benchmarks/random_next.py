"""Print which share of next sentences is random for corpora of different shapes; a little more than half is right.

python benchmarks/random_next.py
"""

import tempfile
from pathlib import Path

from beam_jobs.build_records import build_records
from keras_bert_flow.config.text import CorpusConfig, RecordsConfig
from keras_bert_flow.results.manifest import read_manifest
from keras_bert_flow.text.vocabulary import SPECIAL_PIECES, write_vocabulary

WORDS = ("the", "of", "and", "in", "to", "was", "is", "for")


def make_document(number: int, sentences: int) -> str:
    return "\n".join(
        " ".join(WORDS[(number * 31 + sentence * 7 + place) % 8] for place in range(5 + (number + sentence) % 9))
        + f" {number} {sentence} ."
        for sentence in range(sentences)
    )


def make_documents(count: int, sentences: int, first: int = 0) -> list[str]:
    return [make_document(first + number, sentences) for number in range(count)]


def make_empty(count: int) -> list[str]:
    """Return different documents that have no token: accents, which are stripped."""
    return [chr(0x300 + number // 64) + chr(0x300 + number % 64) for number in range(count)]


SHAPES = {
    "2 documents": make_documents(2, 60),
    "13 documents": make_documents(13, 20),
    "12 and 3,000 copies of another": make_documents(12, 20) + make_documents(1, 20, 12) * 3000,
    "13 and 3,000 without a token": make_documents(13, 20) + make_empty(3000),
    "100, each 30 times": make_documents(100, 20) * 30,
    "3,000 documents": make_documents(3000, 20),
    "1 of 5,000 sentences, 2 of 3": make_documents(1, 5000) + make_documents(2, 3, 1),
    "1 of 5,000 sentences, 3,000 of 3": make_documents(1, 5000) + make_documents(3000, 3, 1),
    "3,000 of one sentence": make_documents(3000, 1),
}


def measure(documents: list[str], folder: Path) -> tuple[int, int, float]:
    """Return distinct documents, training instances and the share of them whose next sentence is random."""
    (folder / "text.txt").write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    write_vocabulary(
        folder / "vocab.txt", [*SPECIAL_PIECES, *WORDS, ".", *"0123456789", *(f"##{d}" for d in range(10))]
    )
    corpus = CorpusConfig(input=(str(folder / "text.txt"),), lines="sentences")
    records = RecordsConfig(held_out_fraction=0, duplication=2)
    counters = read_manifest(build_records(corpus, records, folder / "vocab.txt", False, folder / "records")).counters
    instances = counters["instances_train"]
    return counters["documents_train"], instances, counters["random_next"] / instances


def main() -> None:
    print(f"{'corpus':36}{'distinct':>10}{'instances':>12}{'random next':>14}")
    for name, documents in SHAPES.items():
        with tempfile.TemporaryDirectory() as folder:
            distinct, instances, share = measure(documents, Path(folder))
        print(f"{name:36}{distinct:10,}{instances:12,}{share:14.1%}")


if __name__ == "__main__":
    main()
