"""Estimate how many instances documents will make, before any is made: from above, since files are sized by it."""

from itertools import accumulate

from keras_bert_flow.text.objectives import MLM, MLM_SOP
from keras_bert_flow.text.packing import PACKED_SPECIAL_TOKENS
from keras_bert_flow.text.pairs import SPECIAL_TOKENS

# A chunk of `mlm_nsp` is used whole half of the time; otherwise what a random B displaced, half of it on average, comes
# again: 4/3 pairs a chunk. Of a document shorter than a chunk there are up to 2 pairs on average.
_PAIRS_PER_CHUNK, _LEAST_PAIRS = 1.45, 2.0
_PADDED_PER_DOCUMENT = 1 / 32  # the last, padded sequence of each pool of about 64 documents, twice that to be safe


class InstanceEstimate:
    """Map the size of a document to an upper estimate of its instances in one pass, in thousandths.

    Integers add up to the same number in any order.

    Args:
        objective: `mlm_nsp`, `mlm` or `mlm_sop`.
        sequence_length: most tokens of an instance.
        short_fraction: share of passes that aim at a random shorter length.
    """

    def __init__(self, objective: str, sequence_length: int, short_fraction: float):
        self._is_packed, self._is_ordered = objective == MLM, objective == MLM_SOP
        self._room = sequence_length - (PACKED_SPECIAL_TOKENS if self._is_packed else SPECIAL_TOKENS)
        self._short_fraction = short_fraction
        self._harmonic = [0.0, *accumulate(1 / target for target in range(1, self._room + 1))]

    def __call__(self, sentences: int, tokens: int) -> int:
        """Return thousandths of an instance for a document of so many sentences and tokens."""
        if self._is_packed:
            return int(1000 * ((tokens + 1) / self._room + _PADDED_PER_DOCUMENT)) + 1  # [SEP] behind a document
        if self._is_ordered:  # two sentences or more make a pair, and none is used again
            most, per_chunk = sentences // 2, 1.0
        else:
            most, per_chunk = sentences, _PAIRS_PER_CHUNK
        full = min(most, max(_LEAST_PAIRS, per_chunk * tokens / self._room + 1))
        short = max(full, self._average_short(most, per_chunk * tokens))
        return int(1000 * (full + (short - full) * self._short_fraction)) + 1

    def _average_short(self, most: int, pair_tokens: float) -> float:
        """Return the average of `min(most, pair_tokens / target + 1)` over targets from 2 to the longest."""
        last = min(self._room, max(1, int(pair_tokens / (most - 1)))) if most > 1 else self._room  # it gives `most`
        rest = pair_tokens * (self._harmonic[self._room] - self._harmonic[last]) + self._room - last
        return ((last - 1) * most + rest) / max(1, self._room - 1)
