"""Cut documents into pairs of neighbouring segments, half of them in the wrong order.

Source: Lan et al. 2020 (ALBERT), section 3.1, arXiv:1909.11942; google-research/albert, create_pretraining_data.py.
Chunks, target lengths and truncation are those of `pairs`. One rule differs: there, a chunk of one sentence gets a
random second segment even so. Here a chunk has two sentences or more, and a sentence that would be left alone at the
end joins the chunk before it; a document of one sentence gives no pair.

Kept, and worth knowing: the sentence that fills a chunk is more often a long one, so the later segment is on average
the longer one, and lengths alone tell the order a little better than chance.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from keras_bert_flow.text.pairs import SPECIAL_TOKENS, SegmentPair, draw_target, end_of_chunk, truncate_pair

SWAPPED_SHARE = 0.5


def build_ordered_pairs(
    sentences: Sequence[np.ndarray], sequence_length: int, short_fraction: float, rng: np.random.Generator
) -> Iterator[SegmentPair]:
    """Make one pass over a document; `is_random_next` of a pair says that its segments are swapped.

    Args:
        sentences: token ids of each sentence of the document.
        sequence_length: most tokens of an instance, special tokens included.
        short_fraction: share of passes whose target length is drawn from 2 to the longest.
        rng: source of every choice.
    """
    longest = sequence_length - SPECIAL_TOKENS
    target = draw_target(longest, short_fraction, rng)
    start = 0
    while start < len(sentences) - 1:
        end = max(end_of_chunk(sentences, start, target), start + 2)
        if end == len(sentences) - 1:
            end += 1  # no sentence is left alone
        split = int(rng.integers(start + 1, end))
        first, second = np.concatenate(sentences[start:split]), np.concatenate(sentences[split:end])
        first, second = truncate_pair(first, second, longest, rng)
        is_swapped = bool(rng.random() < SWAPPED_SHARE)
        yield SegmentPair(second, first, True) if is_swapped else SegmentPair(first, second, False)
        start = end
