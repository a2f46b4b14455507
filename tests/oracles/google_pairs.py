"""Make sentence pairs by the rules of google-research/bert, in slow and plain Python.

Written from the rules of `create_instances_from_document` and `truncate_seq_pair` in create_pretraining_data.py:
what the library's faster builder must agree with, in distribution.
"""

import random


def create_pairs(
    documents: list[list[list[int]]], number: int, max_tokens: int, short_probability: float, rng: random.Random
):
    """Return (tokens_a, tokens_b, is_random_next) for one pass over a document.

    Args:
        documents: sentences of token ids of every document.
        number: which of them.
        max_tokens: tokens of a pair, special ones not counted.
    """
    document = documents[number]
    target = max_tokens
    if rng.random() < short_probability:
        target = rng.randint(2, max_tokens)
    pairs, chunk, length, i = [], [], 0, 0
    while i < len(document):
        chunk.append(document[i])
        length += len(document[i])
        if i == len(document) - 1 or length >= target:
            a_end = rng.randint(1, len(chunk) - 1) if len(chunk) >= 2 else 1
            tokens_a = [token for sentence in chunk[:a_end] for token in sentence]
            is_random_next = len(chunk) == 1 or rng.random() < 0.5
            if is_random_next:
                tokens_b = _draw_b(documents, number, target - len(tokens_a), rng)
                i -= len(chunk) - a_end  # what was not used comes again
            else:
                tokens_b = [token for sentence in chunk[a_end:] for token in sentence]
            truncate_pair(tokens_a, tokens_b, max_tokens, rng)
            pairs.append((tokens_a, tokens_b, is_random_next))
            chunk, length = [], 0
        i += 1
    return pairs


def _draw_b(documents, number, wanted, rng):
    for _ in range(10):
        other = rng.randint(0, len(documents) - 1)
        if other != number:
            break
    document = documents[other]
    tokens = []
    for sentence in document[rng.randint(0, len(document) - 1) :]:
        tokens.extend(sentence)
        if len(tokens) >= wanted:
            break
    return tokens


def truncate_pair(tokens_a: list[int], tokens_b: list[int], max_tokens: int, rng: random.Random) -> None:
    """Shorten in place, a token at a time, from the front or the back of the longer one."""
    while len(tokens_a) + len(tokens_b) > max_tokens:
        longer = tokens_a if len(tokens_a) > len(tokens_b) else tokens_b
        if rng.random() < 0.5:
            del longer[0]
        else:
            longer.pop()
