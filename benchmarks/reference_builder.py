"""Build pre-training records in one process of plain Python, by the rules of google-research/bert: a yardstick.

Written from the rules of create_pretraining_data.py and tokenization.py: text with one sentence a line and a blank line
between documents becomes serialised examples. Slow on purpose: lists, `random.Random`, one token after another.
"""

import random
import sys
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from keras_bert_flow.text.tokenizers.normalization import is_han, is_punctuation

sys.path.insert(0, str(Path(__file__).parents[1]))  # the tests know how protobuf writes a record
from tests.oracles.examples import encode_example

CLS, SEP, MASK, UNKNOWN = "[CLS]", "[SEP]", "[MASK]", "[UNK]"
MAX_WORD_CHARACTERS = 200
OTHER_DOCUMENT_TRIES = 10


@dataclass
class Settings:
    sequence_length: int = 128
    max_predictions: int = 20
    masked_fraction: float = 0.15
    short_fraction: float = 0.1
    duplication: int = 5
    whole_word: bool = False


@dataclass
class Instance:
    tokens: list[str]
    segment_ids: list[int]
    is_random_next: bool
    positions: list[int]
    labels: list[str]


def tokenize(text: str, vocabulary: dict[str, int]) -> list[str]:
    """Split a text into uncased WordPiece tokens, the longest first."""
    cleaned = []
    for character in text:
        if character in "\0\ufffd" or unicodedata.category(character) in ("Cc", "Cf") and character not in "\t\n\r":
            continue
        if character in "\t\n\r" or unicodedata.category(character) == "Zs":
            cleaned.append(" ")
        else:
            cleaned.append(f" {character} " if is_han(character) else character)
    tokens = []
    for word in "".join(cleaned).split():
        folded = unicodedata.normalize("NFD", word.lower())
        plain = (character for character in folded if unicodedata.category(character) != "Mn")
        spaced = "".join(f" {character} " if is_punctuation(character) else character for character in plain)
        for part in spaced.split():
            tokens.extend(_match(part, vocabulary))
    return tokens


def read_documents(text: str, vocabulary: dict[str, int]) -> list[list[list[str]]]:
    """Return documents of sentences of tokens."""
    documents: list[list[list[str]]] = [[]]
    for line in text.split("\n"):
        if not line.strip():
            documents.append([])
        elif tokens := tokenize(line, vocabulary):
            documents[-1].append(tokens)
    return [document for document in documents if document]


def build_instances(
    documents: list[list[list[str]]], vocabulary: dict[str, int], settings: Settings, rng: random.Random
) -> list[Instance]:
    """Make the instances of all copies of all documents, shuffled."""
    rng.shuffle(documents)
    words = list(vocabulary)
    instances = [
        instance
        for _ in range(settings.duplication)
        for number in range(len(documents))
        for instance in build_document(documents, number, words, settings, rng)
    ]
    rng.shuffle(instances)
    return instances


def build_document(
    documents: list[list[list[str]]], number: int, words: list[str], settings: Settings, rng: random.Random
) -> Iterator[Instance]:
    """Make one pass over a document."""
    document, longest = documents[number], settings.sequence_length - 3
    target = rng.randint(2, longest) if rng.random() < settings.short_fraction else longest
    chunk: list[list[str]] = []
    length = place = 0
    while place < len(document):
        chunk.append(document[place])
        length += len(document[place])
        if place == len(document) - 1 or length >= target:
            split = rng.randint(1, len(chunk) - 1) if len(chunk) > 1 else 1
            first = [token for sentence in chunk[:split] for token in sentence]
            is_random_next = len(chunk) == 1 or rng.random() < 0.5
            if is_random_next:
                second = _draw_second(documents, number, target - len(first), rng)
                place -= len(chunk) - split
            else:
                second = [token for sentence in chunk[split:] for token in sentence]
            _truncate(first, second, longest, rng)
            tokens = [CLS, *first, SEP, *second, SEP]
            segment_ids = [0] * (len(first) + 2) + [1] * (len(second) + 1)
            yield Instance(tokens, segment_ids, is_random_next, *mask_tokens(tokens, words, settings, rng))
            chunk, length = [], 0
        place += 1


def mask_tokens(
    tokens: list[str], words: list[str], settings: Settings, rng: random.Random
) -> tuple[list[int], list[str]]:
    """Hide tokens in place, and return where, ascending, and what stood there."""
    units: list[list[int]] = []
    for place, token in enumerate(tokens):
        if token in (CLS, SEP):
            continue
        if settings.whole_word and units and token.startswith("##"):
            units[-1].append(place)
        else:
            units.append([place])
    rng.shuffle(units)
    budget = min(settings.max_predictions, max(1, round(len(tokens) * settings.masked_fraction)))
    chosen: list[tuple[int, str]] = []
    for unit in units:
        if len(chosen) >= budget:
            break
        if len(chosen) + len(unit) > budget:
            continue
        for place in unit:
            chosen.append((place, tokens[place]))
            if rng.random() < 0.8:
                tokens[place] = MASK
            elif rng.random() >= 0.5:
                tokens[place] = words[rng.randint(0, len(words) - 1)]
    chosen.sort()
    return [place for place, _ in chosen], [token for _, token in chosen]


def serialise(instance: Instance, vocabulary: dict[str, int], settings: Settings) -> bytes:
    """Pad an instance and write it as a tf.train.Example."""
    length, predictions = settings.sequence_length, settings.max_predictions
    features = {}
    for name, values, size in (
        ("input_ids", [vocabulary[token] for token in instance.tokens], length),
        ("input_mask", [1] * len(instance.tokens), length),
        ("segment_ids", instance.segment_ids, length),
        ("masked_lm_positions", instance.positions, predictions),
        ("masked_lm_ids", [vocabulary[token] for token in instance.labels], predictions),
        ("next_sentence_labels", [int(instance.is_random_next)], 1),
    ):
        features[name] = np.array(values + [0] * (size - len(values)))
    weights = [1.0] * len(instance.positions)
    features["masked_lm_weights"] = np.array(weights + [0.0] * (predictions - len(weights)))
    return encode_example(features)


def _match(word: str, vocabulary: dict[str, int]) -> list[str]:
    if len(word) > MAX_WORD_CHARACTERS:
        return [UNKNOWN]
    pieces, start = [], 0
    while start < len(word):
        end = len(word)
        while end > start and (piece := ("##" if start else "") + word[start:end]) not in vocabulary:
            end -= 1
        if end == start:
            return [UNKNOWN]
        pieces.append(piece)
        start = end
    return pieces


def _draw_second(documents: list[list[list[str]]], number: int, wanted: int, rng: random.Random) -> list[str]:
    for _ in range(OTHER_DOCUMENT_TRIES):
        other = rng.randint(0, len(documents) - 1)
        if other != number:
            break
    tokens: list[str] = []
    for sentence in documents[other][rng.randint(0, len(documents[other]) - 1) :]:
        tokens.extend(sentence)
        if len(tokens) >= wanted:
            break
    return tokens


def _truncate(first: list[str], second: list[str], longest: int, rng: random.Random) -> None:
    while len(first) + len(second) > longest:
        longer = first if len(first) > len(second) else second
        if rng.random() < 0.5:
            del longer[0]
        else:
            longer.pop()
