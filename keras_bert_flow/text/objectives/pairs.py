"""Shared by objectives with segment pairs, [CLS] A [SEP] B [SEP]."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, islice

import numpy as np

from keras_bert_flow.text.objectives.objective import ROWS, Batch, Features, InstanceRule, Objective
from keras_bert_flow.text.rows import Pool, TokenizedDocument, TokenRows, join_pairs, keyed_generator

SPECIAL_TOKENS = 3  # [CLS] A [SEP] B [SEP]
# Position and length of A, position and length of B, all in tokens of the pool; the label, of which `MISTAKEN` is that
# of a random B that the text could go on with
PairPlaces = tuple[int, int, int, int, int]
MISTAKEN = 2


class SentencePairs(Objective):
    """Base class of objectives with masked tokens and a label of two segments."""

    def make_batch(self, features: Features) -> Batch:
        """Add the label of the pair, `nsp`, and its weight, (batch,)."""
        x, y, weights = super().make_batch(features)
        labels = features["next_sentence_labels"][:, 0].astype("int32")
        return x, y | {"nsp": labels}, weights | {"nsp": np.ones(len(labels), "float32")}


def make_pair_rows(
    draw: Callable[..., Iterator[PairPlaces]],
    purpose: str,
    documents: Sequence[TokenizedDocument],
    copies: int,
    rule: InstanceRule,
    seed: int,
) -> Iterator[TokenRows]:
    """Make the pairs of a pool, ROWS at a time.

    Args:
        draw: draws the pairs of one pass over a document, such as `mlm_nsp.draw_pairs`.
        purpose: key of its random numbers.
        documents, copies, rule, seed: see `instances.build_instances`.
    """
    pool = Pool.of(documents)
    cutting = keyed_generator(seed, "truncation", *(document.id for document in documents))
    pairs = (
        pair
        for number, document in enumerate(documents)
        for copy in range(copies)
        for pair in draw(
            pool,
            number,
            rule.sequence_length,
            rule.short_fraction,
            keyed_generator(seed, purpose, document.id, copy),
        )
    )
    while batch := list(islice(pairs, ROWS)):
        table = np.array(batch, np.int64)  # (pairs, 5)
        places = truncate_pairs(table[:, :4], rule.sequence_length - SPECIAL_TOKENS, cutting)
        labels, mistaken = table[:, 4] > 0, int(np.count_nonzero(table[:, 4] == MISTAKEN))
        rows = join_pairs(pool.token_ids, places, labels, rule.sequence_length, rule.cls_id, rule.sep_id)
        yield replace(rows, mistaken_labels=mistaken)


def draw_target(longest: int, short_fraction: float, rng: np.random.Generator) -> int:
    """Draw the target length, in tokens, of the chunks of one pass over a document."""
    return int(rng.integers(2, longest, endpoint=True)) if rng.random() < short_fraction else longest


def truncate_pairs(places: np.ndarray, longest: int, rng: np.random.Generator) -> np.ndarray:
    """Truncate pairs to `longest` tokens: always the longer segment, B if both have the same length.

    Each token is removed at the front or the back by a coin toss.

    Args:
        places: int, (pairs, 4), position and length of A and of B.
        longest: most tokens of A and B together.
        rng: source of the tosses.
    Returns:
        int, (pairs, 4), position and length of what is left of A and of B.
    """
    lengths = places[:, 1::2]
    excess = np.maximum(lengths.sum(axis=1) - longest, 0)
    first_is_longer = lengths[:, 0] > lengths[:, 1]
    alone = np.minimum(excess, np.abs(lengths[:, 0] - lengths[:, 1]))  # cuts until both have the same length
    in_turn = excess - alone  # and then in turn, B first
    cuts = np.stack([in_turn // 2 + alone * first_is_longer, (in_turn + 1) // 2 + alone * ~first_is_longer], axis=1)
    left = places.copy()
    left[:, ::2] += rng.binomial(cuts, 0.5)
    left[:, 1::2] -= cuts
    return left


# Estimate the number of pairs that documents will give, from above, since files are sized by it.


class PairEstimate:
    """Map the size of a document to an upper estimate of its pairs in one pass, in thousandths.

    Args:
        sequence_length: most tokens of a pair.
        short_fraction: share of passes that aim at a random shorter length.
        sentences_per_pair: least sentences of a pair.
        pairs_per_chunk: average for a document of many chunks.
        least_pairs: average for a document shorter than a chunk.
    """

    def __init__(
        self,
        sequence_length: int,
        short_fraction: float,
        sentences_per_pair: int,
        pairs_per_chunk: float,
        least_pairs: float,
    ):
        self._sentences_per_pair, self._pairs_per_chunk, self._least = sentences_per_pair, pairs_per_chunk, least_pairs
        self._room = sequence_length - SPECIAL_TOKENS
        self._short_fraction = short_fraction
        self._harmonic = [0.0, *accumulate(1 / target for target in range(1, self._room + 1))]

    def __call__(self, sentences: int, tokens: int) -> int:
        """Return thousandths of a pair for a document with this many sentences and tokens."""
        most = sentences // self._sentences_per_pair
        full = min(most, max(self._least, self._pairs_per_chunk * tokens / self._room + 1))
        short = max(full, self._average_short(most, self._pairs_per_chunk * tokens))
        return int(1000 * (full + (short - full) * self._short_fraction)) + 1

    def _average_short(self, most: int, pair_tokens: float) -> float:
        """Return the average of `min(most, pair_tokens / target + 1)` over targets from 2 to the longest."""
        last = min(self._room, max(1, int(pair_tokens / (most - 1)))) if most > 1 else self._room  # `most` up to here
        rest = pair_tokens * (self._harmonic[self._room] - self._harmonic[last]) + self._room - last
        return ((last - 1) * most + rest) / max(1, self._room - 1)
