"""Cut documents into pairs of segments, B following A or taken from another document.

Source: Devlin et al. 2019, section 3.1, task 2 and appendix A.2; google-research/bert,
`create_instances_from_document`. Its rules, kept: the target length is drawn once for a pass over a document; a chunk
of one sentence always gets a random B (so a little more than half of the pairs do); sentences of a chunk that a random
B displaced are used again. One rule differs: a random B is never from the same document (there, after ten draws, it
can be), and where there is no other document to draw from, no pair is labelled random.
"""

from collections.abc import Iterator

import numpy as np

from keras_bert_flow.text.pool import Pool

RANDOM_NEXT_SHARE = 0.5
SPECIAL_TOKENS = 3  # [CLS] A [SEP] B [SEP]

# Place and length of A, place and length of B, all in tokens of the pool; B is random, or, for `mlm_sop`, the segment
# before A
PairPlaces = tuple[int, int, int, int, bool]


def draw_pairs(
    pool: Pool, number: int, sequence_length: int, short_fraction: float, rng: np.random.Generator
) -> Iterator[PairPlaces]:
    """Make one pass over a document; the segments of a pair may be too long together.

    Args:
        pool: this document, and the others, that a random B may come from.
        number: which of them.
        sequence_length: most tokens of an instance, special tokens included.
        short_fraction: share of passes whose target length is drawn from 2 to the longest.
        rng: source of every choice.
    """
    start, stop = pool.firsts[number : number + 2]
    others = len(pool.firsts) - 2
    target = draw_target(sequence_length - SPECIAL_TOKENS, short_fraction, rng)
    draws = iter(rng.random((stop - start, 4)).tolist())  # enough for a pair a sentence; one by one they cost far more
    while start < stop:
        for_split, for_label, for_document, for_sentence = next(draws)
        end = pool.end_of_chunk(start, stop, target)
        split = start + 1 + int(for_split * (end - start - 1))
        first = pool.place(start, split)
        if (split == end or for_label < RANDOM_NEXT_SHARE) and others:
            other = int(for_document * others)
            other += other >= number
            yield *first, *_draw_segment(pool, other, target - first[1], for_sentence), True
            start = split  # the rest of the chunk comes again
        else:
            if split < end:  # else a single sentence, and no other document to pair it with
                yield *first, *pool.place(split, end), False
            start = end


def draw_target(longest: int, short_fraction: float, rng: np.random.Generator) -> int:
    """Draw the length that the chunks of one pass over a document aim at, tokens."""
    return int(rng.integers(2, longest, endpoint=True)) if rng.random() < short_fraction else longest


def truncate_pairs(places: np.ndarray, longest: int, rng: np.random.Generator) -> np.ndarray:
    """Shorten pairs to `longest` tokens: always the longer segment, B if both are of a length, at front or back by a
    coin toss for each token.

    Args:
        places: int, (pairs, 4), place and length of A and of B.
        longest: most tokens of A and B together.
        rng: source of the tosses.
    Returns:
        The same of what is left.
    """
    lengths = places[:, 1::2]
    excess = np.maximum(lengths.sum(axis=1) - longest, 0)
    first_is_longer = lengths[:, 0] > lengths[:, 1]
    alone = np.minimum(excess, np.abs(lengths[:, 0] - lengths[:, 1]))  # cuts until both are of a length
    in_turn = excess - alone  # and then in turn, B first
    cuts = np.stack([in_turn // 2 + alone * first_is_longer, (in_turn + 1) // 2 + alone * ~first_is_longer], axis=1)
    left = places.copy()
    left[:, ::2] += rng.binomial(cuts, 0.5)
    left[:, 1::2] -= cuts
    return left


def _draw_segment(pool: Pool, number: int, target: int, draw: float) -> tuple[int, int]:
    """Take sentences from a random place of a document until `target` tokens; at least one sentence."""
    first, stop = pool.firsts[number : number + 2]
    start = first + int(draw * (stop - first))
    return pool.place(start, pool.end_of_chunk(start, stop, target))
