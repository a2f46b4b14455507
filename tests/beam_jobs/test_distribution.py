"""Records are distributed as the original algorithm makes them: chi-square against the plain builder of `benchmarks`.

Both build from the same text with the same vocabulary, for five seeds, and every comparison must give p > 0.001. Where
the distributions are equal, a comparison fails once in 1,000; there are 13 of them for each seed, unit and text, so of
all 260 one or more fails in a quarter of the cases. The seeds are fixed, so a test holds always or never until a change
alters what is drawn; a seed that fails then is not yet an error, but the next seed failing in the same comparison is:
that is one in a million. At 0.05, thirteen would fail at every change; far below 0.001, errors would have to be
greater to be found.

Chi-square wants independent observations. The instances of one pass over a document share its target length, so of each
document a single one is looked at, any of them; the tokens that hide, change or stay are independent all the same.

Two rules of whole-word masking differ on purpose, see docs/objectives.md: where they show, masks are not compared.
"""

import importlib.util
import os
import random
from collections import Counter, defaultdict
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from beam_jobs.build_records import build_records
from keras_bert_flow.config.text import CorpusConfig, RecordsConfig
from keras_bert_flow.text.corpus.documents import ReadingRule, read_documents
from keras_bert_flow.text.vocabulary import SPECIAL_PIECES, read_vocabulary, write_vocabulary
from tests.beam_jobs.test_build_records import read_part
from tests.text.objectives.test_mlm_nsp import assert_same_distribution

DATA = os.environ.get("KBF_TEST_DATA")
BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "reference_builder.py"
GRAM = 4  # tokens that tell a place in the text, most of the time
SEEDS = range(1, 6)


class Case(NamedTuple):
    """A text, what both builders are told, and what it takes to look at what they make."""

    file: Path
    vocabulary_file: Path
    vocabulary: dict[str, int]
    documents: list  # of sentences of pieces
    places: dict  # the first time that GRAM ids come: (document, tokens behind the start of the sentence)
    sequence_length: int
    max_predictions: int


class Example(NamedTuple):
    original: np.ndarray  # int, (length,)
    inputs: np.ndarray  # int, (length,), with its masks
    positions: np.ndarray  # int, (predictions,)
    is_random_next: bool


@pytest.fixture(scope="module")
def reference():
    spec = importlib.util.spec_from_file_location(BENCHMARK.stem, BENCHMARK)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make_text(folder):
    """Write 8,000 documents of one to eight sentences of words of one to three pieces."""
    rng, letters = np.random.default_rng(0), "abcdefgh"
    heads = [a + b + c for a in letters for b in letters for c in letters]
    tails = ["", *(x + y for x in "xyz" for y in "xyz")]
    write_vocabulary(folder / "vocab.txt", [*SPECIAL_PIECES, *heads, *(f"##{tail}" for tail in tails[1:])])
    tail_of = rng.choice([0, *range(1, 10)], (len(heads), 2), p=[0.7, *[0.3 / 9] * 9])  # a word has its pieces for good
    words = [
        head + tails[first] + (tails[second] if first else "")
        for head, (first, second) in zip(heads, tail_of, strict=True)
    ]
    shares = 1 / np.arange(3, len(words) + 3)
    documents = [
        [" ".join(rng.choice(words, rng.geometric(0.1), p=shares / shares.sum())) for _ in range(rng.integers(1, 9))]
        for _ in range(8000)
    ]
    return documents, folder / "vocab.txt", 32, 4


def read_paragraphs(folder):
    """Take paragraphs of Wikipedia for documents."""
    path = f"{DATA}/corpus/wiki_en_train.txt"
    rule = ReadingRule(split_lines=False)
    lines = (line for document in read_documents(path, rule) for line in document.sentences)
    (folder / "paragraphs.txt").write_text("\n\n".join(islice(lines, 6000)))
    paragraphs = read_documents(str(folder / "paragraphs.txt"), ReadingRule())
    vocabulary_file = Path(DATA, "vocab", "uncased_L-12_H-768_A-12.vocab.txt")
    return [document.sentences for document in paragraphs], vocabulary_file, 64, 10


WIKIPEDIA = pytest.param(
    read_paragraphs, marks=[pytest.mark.slow, pytest.mark.skipif(not DATA, reason="KBF_TEST_DATA is not set")]
)


@pytest.fixture(scope="module", params=[make_text, WIKIPEDIA], ids=["synthetic", "wikipedia"])
def case(request, reference, tmp_path_factory):
    folder = tmp_path_factory.mktemp("distribution")
    texts, vocabulary_file, *limits = request.param(folder)
    texts = list(dict.fromkeys(map(tuple, texts)))  # the job uses a document once
    text = "\n\n".join("\n".join(sentences) for sentences in texts)
    (folder / "text.txt").write_text(text, encoding="utf-8")
    vocabulary = {piece: number for number, piece in enumerate(read_vocabulary(vocabulary_file))}
    documents = reference.read_documents(text, vocabulary)
    places = {}
    for number, document in enumerate(documents):
        ids = [vocabulary[piece] for sentence in document for piece in sentence]
        behind = [place for sentence in document for place in range(len(sentence))]
        for place in range(len(ids)):
            places.setdefault(tuple(ids[place : place + GRAM]), (number, behind[place]))
    return Case(folder / "text.txt", vocabulary_file, vocabulary, documents, places, *limits)


def build_ours(case, unit, seed, folder):
    config = RecordsConfig(
        sequence_length=case.sequence_length,
        max_predictions=case.max_predictions,
        mask_unit=unit,
        duplication=1,
        held_out_fraction=0,
    )
    corpus = CorpusConfig(input=(str(case.file),), lines="sentences")
    built = build_records(corpus, config, case.vocabulary_file, False, folder / "r", seed)
    for record in read_part(built, "train"):
        inputs, positions = record["input_ids"][: len(record["original"])], record["masked_lm_positions"]
        label = bool(record["next_sentence_labels"][0])
        yield Example(record["original"], inputs, positions[: record["count"]], label)


def build_theirs(case, unit, seed, reference):
    settings = reference.Settings(case.sequence_length, case.max_predictions, duplication=1, whole_word=unit == "word")
    instances = reference.build_instances([*case.documents], case.vocabulary, settings, random.Random(seed))
    for instance in instances:
        inputs = np.array([case.vocabulary[token] for token in instance.tokens])
        original, positions = inputs.copy(), np.array(instance.positions, int)
        original[positions] = [case.vocabulary[token] for token in instance.labels]
        yield Example(original, inputs, positions, instance.is_random_next)


def observe(examples, case, seed):
    """Count what is to be compared: the masked tokens of all, and everything else of one example a document."""
    seen, of_document = defaultdict(Counter), defaultdict(list)
    mask_id, is_piece = case.vocabulary["[MASK]"], np.array([piece.startswith("##") for piece in case.vocabulary])
    for example in examples:
        replaced, original = example.inputs[example.positions], example.original[example.positions]
        kinds = np.where(replaced == mask_id, "hidden", np.where(replaced == original, "kept", "changed"))
        seen["80/10/10"].update(kinds.tolist())
        seen["changed to"].update((replaced[kinds == "changed"] * 20 // len(is_piece)).tolist())
        start = tuple(example.original[1 : np.flatnonzero(example.original == case.vocabulary["[SEP]"])[0]][:GRAM])
        of_document[case.places.get(start, (start,))[0]].append(example)
    rng = random.Random(seed)
    for examples in of_document.values():
        for name, value in describe(rng.choice(examples), case, is_piece).items():
            seen[name][value] += 1
    return seen


def describe(example, case, is_piece):
    middle = int(np.flatnonzero(example.original == case.vocabulary["[SEP]"])[0])
    first, second = example.original[1:middle], example.original[middle + 1 : -1]
    is_masked = np.zeros(len(example.original), bool)
    is_masked[example.positions] = True
    word_of = np.cumsum(~is_piece[example.original])
    word_lengths = np.bincount(word_of)
    masked_of = np.bincount(word_of[is_masked], minlength=len(word_lengths))
    pairs = {
        "length": len(example.original),
        "length in eighths": 8 * len(example.original) // case.sequence_length,  # few bins tell more of a shift
        "length of A": len(first),
        "length of B": len(second),
        "random next": example.is_random_next,
        # Truncation cuts at front or back, and a segment begins with a sentence but for that.
        "start of A": case.places.get(tuple(first[:GRAM]), (0, -1))[1],
        "start of B": case.places.get(tuple(second[:GRAM]), (0, -1))[1],
    }
    starts = np.flatnonzero(~is_piece[example.original] & ~np.isin(np.arange(len(word_of)), (0, middle)))[:-1]
    shortest = min(word_lengths[word_of[starts]], default=0)
    budget = min(case.max_predictions, max(1, round(0.15 * len(example.original))))
    if is_piece[second[0]] or shortest > budget:
        return pairs
    return pairs | {
        "masked tokens": len(example.positions),
        "masked pieces": int(is_piece[example.original[is_masked]].sum()),
        "words masked in part": int(np.sum((masked_of > 0) & (masked_of < word_lengths))),
        "first masked place": int(example.positions[0]),
    }


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["token", "word"])
@pytest.mark.parametrize("seed", SEEDS)
def test_records_are_distributed_as_the_original_makes_them(unit, seed, case, reference, tmp_path):
    ours = observe(build_ours(case, unit, seed, tmp_path), case, seed)
    theirs = observe(build_theirs(case, unit, seed, reference), case, seed + 100)
    assert ours.keys() == theirs.keys() and len(ours) == 13
    assert min(ours["length"].total(), theirs["length"].total()) > 0.95 * len(case.documents)
    different = []
    for name in ours:
        try:
            assert_same_distribution(ours[name], theirs[name])
        except AssertionError:
            different.append(name)
    assert not different
