"""Compare vocabulary learners on text they have not seen, and time them: prints the tables of docs/vocabulary.md.

python benchmarks/vocabulary.py --train wiki_en_train.txt --held-out wiki_en_dev.txt
"""

import argparse
import importlib
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from beam_jobs.build_vocabulary import build_vocabulary, count_words
from keras_bert_flow.config.text import CorpusConfig, VocabularyConfig
from keras_bert_flow.text.learner import learn_vocabulary
from keras_bert_flow.text.tokenizers.learning import WordPieceWords
from keras_bert_flow.text.tokenizers.normalization import normalize_text
from keras_bert_flow.text.vocabulary import SPECIAL_PIECES, read_vocabulary

LETTERS = "etaoinshrdlcumwfgypbvkjxqz"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train", type=Path, help="Text to learn from, uncased.")
    parser.add_argument("--held-out", type=Path, help="Text to measure on.")
    parser.add_argument("--sizes", type=int, nargs="+", default=[8000, 30522], help="Pieces of the vocabularies.")
    parser.add_argument("--words", type=int, default=500_000, help="Distinct words of the last row; 0 leaves it out.")
    parser.add_argument("--only-words", action="store_true", help="Print seconds and peak MB of the last row alone.")
    options = parser.parse_args()
    if options.only_words:
        print(time_generated_words(options.words))
        return
    if options.train:
        compare_learners(options.train, options.held_out, options.sizes)
    if options.words:
        command = [sys.executable, __file__, "--only-words", "--words", str(options.words)]  # for a peak of its own
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
        seconds, megabytes = done.stdout.split()
        print(f"\n{options.words:,} generated words, 30,522 pieces: {seconds} s, peak memory {megabytes} MB")


def compare_learners(train: Path, held_out: Path, sizes: list[int]) -> None:
    """Print a row for each learner and size."""
    words = read_words(held_out)
    learners: dict[str, Callable[[Path, int], list[str]]] = {
        "this project, `kbf vocab`": learn_with_the_job,
        "`WordPieceTrainer` of `tokenizers`": learn_with_tokenizers,
    }
    try:
        importlib.import_module("tensorflow_text.tools.wordpiece_vocab.wordpiece_tokenizer_learner_lib")

        learners["TensorFlow Text"] = learn_with_tensorflow_text
    except ImportError:
        print("TensorFlow Text is not installed: no row for it.\n")
    start = time_start_of_beam()
    print("| pieces | learner | tokens per word | unknown words % | bytes per token | seconds |")
    print("|---:|---|---:|---:|---:|---:|")
    for size in sizes:
        for name, learn in learners.items():
            before = time.perf_counter()
            pieces = learn(train, size)
            seconds = time.perf_counter() - before - (start if learn is learn_with_the_job else 0)
            fertility, unknown, width = measure(pieces, words)
            print(
                f"| {len(pieces):,} | {name} | {fertility:.4f} | {unknown:.4f} | {width:.3f} | {seconds:.1f} |",
                flush=True,
            )


def measure(pieces: list[str], words: Counter[str]) -> tuple[float, float, float]:
    """Return (tokens per word, percentage of words that are [UNK], bytes per token) by the encoder of `tokenizers`."""
    model = models.WordPiece({piece: number for number, piece in enumerate(pieces)}, unk_token="[UNK]")
    unknown_id = pieces.index("[UNK]")
    tokens = unknown = size = 0
    for word, count in words.items():
        ids = [token.id for token in model.tokenize(word)]
        tokens += count * len(ids)
        unknown += count * (ids == [unknown_id])
        size += count * len(word.encode())
    return tokens / words.total(), 100 * unknown / words.total(), size / tokens


def read_words(path: Path) -> Counter[str]:
    with open(path, encoding="utf-8") as lines:
        return Counter(word for line in lines for word in normalize_text(line, cased=False).split())


def learn_with_the_job(path: Path, size: int) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "vocabulary"
        build_vocabulary(CorpusConfig(input=(str(path),)), VocabularyConfig(size=size), output)
        return list(read_vocabulary(output / "vocab.txt"))


def learn_with_tokenizers(path: Path, size: int) -> list[str]:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = list(SPECIAL_PIECES)
    trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=special, show_progress=False)
    tokenizer.train([str(path)], trainer)
    vocabulary = tokenizer.get_vocab()
    return sorted(vocabulary, key=vocabulary.get)


def learn_with_tensorflow_text(path: Path, size: int) -> list[str]:
    from tensorflow_text.tools.wordpiece_vocab import wordpiece_tokenizer_learner_lib as learner

    # Its size follows from a whole-number threshold and comes out near `size`; the table says how many it gave.
    special = list(SPECIAL_PIECES)
    return learner.learn(dict(read_words(path)), size, special, lower_thresh=1, slack_ratio=0.005)


def time_start_of_beam() -> float:
    """Return the seconds that a second pipeline of this process takes for one line of text."""
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "one.txt"
        text.write_text("one line\n")
        for _ in range(2):
            before = time.perf_counter()
            count_words(CorpusConfig(input=(str(text),)), WordPieceWords(False), Path(folder))
        return time.perf_counter() - before


def time_generated_words(number: int) -> str:
    """Learn from `number` distinct words with counts like those of Zipf; return "seconds megabytes"."""
    rng = np.random.default_rng(0)
    weights = 1 / np.arange(1, len(LETTERS) + 1)
    words: dict[str, int] = {}
    while len(words) < number:
        rows = rng.choice(list(LETTERS), (10_000, 12), p=weights / weights.sum())
        for length, row in zip(rng.integers(3, 13, 10_000), rows, strict=True):
            words.setdefault("".join(row[:length]), 6 * number // (len(words) + 1) + 1)
    before = time.perf_counter()
    learn_vocabulary(words, 30522)
    seconds = time.perf_counter() - before
    # Not resource's ru_maxrss: it begins with what the parent process had when it started this one.
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return f"{seconds:.0f} {int(peak.split()[1]) / 1024:.0f}"


if __name__ == "__main__":
    main()
