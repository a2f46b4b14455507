"""Estimate the number of pairs that documents will give, from above, since files are sized by it."""

from itertools import accumulate

from keras_bert_flow.text.objectives.pairs import SPECIAL_TOKENS


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
