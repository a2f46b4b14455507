"""Cut documents into pairs of neighbouring segments, half of them in the wrong order.

Source: Lan et al. 2020 (ALBERT), section 3.1, arXiv:1909.11942; google-research/albert, create_pretraining_data.py.
Chunks, target lengths and truncation are those of `pairs`. One rule differs: there, a chunk of one sentence gets a
random second segment even so. Here a chunk has two sentences or more, and a sentence that would be left alone at the
end joins the chunk before it; a document of one sentence gives no pair.

Kept, and worth knowing: the sentence that fills a chunk is more often a long one, so the later segment is on average
the longer one, and lengths alone tell the order a little better than chance.
"""

from collections.abc import Iterator

import numpy as np

from keras_bert_flow.text.pairs import SPECIAL_TOKENS, PairPlaces, draw_target
from keras_bert_flow.text.pool import Pool

SWAPPED_SHARE = 0.5


def draw_ordered_pairs(
    pool: Pool, number: int, sequence_length: int, short_fraction: float, rng: np.random.Generator
) -> Iterator[PairPlaces]:
    """Make one pass over a document; the label of a pair says that its segments are swapped.

    Args:
        pool: holds the document.
        number: which of its documents.
        sequence_length: most tokens of an instance, special tokens included.
        short_fraction: share of passes whose target length is drawn from 2 to the longest.
        rng: source of every choice.
    """
    start, stop = pool.firsts[number : number + 2]
    target = draw_target(sequence_length - SPECIAL_TOKENS, short_fraction, rng)
    draws = iter(rng.random((stop - start, 2)).tolist())
    while start < stop - 1:
        for_split, for_label = next(draws)
        end = max(pool.end_of_chunk(start, stop, target), start + 2)
        if end == stop - 1:
            end += 1  # no sentence is left alone
        split = start + 1 + int(for_split * (end - start - 1))
        first, second = pool.place(start, split), pool.place(split, end)
        yield (*second, *first, True) if for_label < SWAPPED_SHARE else (*first, *second, False)
        start = end
