"""Count the texts that are longer than a model reads, and the tokens that are cut off."""

from collections import Counter
from collections.abc import Mapping

import numpy as np

from keras_bert_flow.tasks.core.features import Features

FEW = 0.01  # the share of texts for which a longer sequence is not advised


class CutTexts:
    """Counts of the texts that were encoded, by their length before they were cut.

    A text is a row of a table: one text, a pair, or for a multiple choice each of its choices with the context.
    """

    def __init__(self) -> None:
        self._lengths: Counter[int] = Counter()  # tokens, special ones included → texts
        self.sequence_length = 0

    def add(self, features: Features) -> None:
        """Add what `Task.encode` made; nothing for tasks that divide long texts into windows."""
        if features.full_lengths is not None and features.sequence_length is not None:
            self.sequence_length = features.sequence_length
            lengths, counts = np.unique(features.full_lengths, return_counts=True)
            self._lengths.update(dict(zip(lengths.tolist(), counts.tolist(), strict=True)))

    @property
    def counters(self) -> dict[str, int]:
        """The counts by name; empty if no text was added.

        `sequence_length`; `texts` and `tokens`, special ones included; `texts_cut` and `tokens_cut`, the texts longer
        than that and what they lose; `length_that_cuts_few`, the least length that would cut at most 1 % of the texts.
        """
        if not self._lengths:
            return {}
        over = {length: count for length, count in self._lengths.items() if length > self.sequence_length}
        return {
            "sequence_length": self.sequence_length,
            "texts": self._lengths.total(),
            "texts_cut": sum(over.values()),
            "tokens": sum(length * count for length, count in self._lengths.items()),
            "tokens_cut": sum((length - self.sequence_length) * count for length, count in over.items()),
            "length_that_cuts_few": self._find_length(),
        }

    def describe(self) -> str:
        """Return a sentence on the texts that were cut; empty if none was."""
        return describe_cut(self.counters)

    def _find_length(self) -> int:
        longer, total = 0, self._lengths.total()
        for length in sorted(self._lengths, reverse=True):
            longer += self._lengths[length]
            if longer > FEW * total:
                return length
        return 0


def describe_cut(counters: Mapping[str, int]) -> str:
    """Return a sentence on the texts that were cut, by the counters of `CutTexts`; empty if none was."""
    if not counters.get("texts_cut"):
        return ""
    share = 100 * counters["tokens_cut"] / counters["tokens"]
    few, sequence_length = counters["length_that_cuts_few"], counters["sequence_length"]
    advice = "at most 1 % of the texts are longer" if few <= sequence_length else f"{few:,} would cut at most 1 %"
    return (
        f"{counters['texts_cut']:,} of {counters['texts']:,} texts are longer than {sequence_length:,} tokens "
        f"(sequence_length): {share:.1f} % of the tokens are cut off and not read; {advice}."
    )
