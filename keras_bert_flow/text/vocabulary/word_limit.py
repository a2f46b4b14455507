"""Limit the words that a vocabulary is learnt from to the most frequent ones that fit in memory."""

from collections.abc import Iterable, Mapping

from keras_bert_flow.text.randomness import as_fraction, keyed_numbers
from keras_bert_flow.text.tokenizers.wordpiece import MAX_WORD_CHARACTERS

MAX_PLACES = (
    8_000_000  # characters of all words and one more for each; the learner takes about 240 bytes of memory each
)

# Count of a word → total places of all words with that count
Histogram = Mapping[int, int]


def count_places(word: str) -> int:
    """Return the places of a word in the learner, 0 for one that it ignores."""
    return len(word) + 1 if len(word) <= MAX_WORD_CHARACTERS else 0


class WordLimit:
    """Decide which words to keep, as a function of the counts alone, without holding any words in memory.

    The most frequent words are kept, as many as fit. Of those that are as frequent as the first that does not fit, a
    share is chosen by a digest, so the limit holds on average.

    Args:
        histogram: histogram of all words.
        most: places of the words to keep.
    """

    def __init__(self, histogram: Histogram, most: int):
        self._find_number = keyed_numbers("words kept")
        self._least, self._share = 0, 1.0  # occurrences of the rarest words kept, and the share kept of those
        left = most
        for count in sorted(histogram, reverse=True):
            if histogram[count] > left:
                self._least, self._share = count, left / histogram[count]
                break
            left -= histogram[count]

    def __call__(self, word: str, count: int) -> bool:
        """Return whether to keep a word with this count."""
        if count != self._least:
            return count > self._least
        return as_fraction(self._find_number(word.encode())) < self._share


def add_histograms(histograms: Iterable[Histogram]) -> dict[int, int]:
    """Add up histograms."""
    total: dict[int, int] = {}
    for histogram in histograms:
        for count, places in histogram.items():
            total[count] = total.get(count, 0) + places
    return total
