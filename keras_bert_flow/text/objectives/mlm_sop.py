"""Masked LM and sentence order prediction: pairs of neighbouring segments, half of them swapped.

Source: Lan et al. 2020 (ALBERT), section 3.1, arXiv:1909.11942; google-research/albert, create_pretraining_data.py.
Chunks, target lengths and truncation are those of `mlm_nsp`. One rule differs: there, a chunk of one sentence still
gets a random second segment. Here, a chunk has two sentences or more, and a sentence that would be left alone at the
end joins the chunk before it; a document of one sentence gives no pair.

A known property that is kept: the sentence that fills a chunk is more often a long one, so the later segment is longer
on average, and lengths alone predict the order a little better than chance.
"""

from collections.abc import Iterator

import numpy as np

from keras_bert_flow.text.objectives.mlm_nsp import SPECIAL_TOKENS, PairPlaces, SentencePairs, draw_target
from keras_bert_flow.text.objectives.objective import SentenceLabel
from keras_bert_flow.text.rows import Pool

SWAPPED_SHARE = 0.5


class SentenceOrder(SentencePairs):
    """Masked LM and sentence order prediction: ALBERT."""

    sentence_label = SentenceLabel(
        task="sentence_order",
        meanings=("A before B", "A and B swapped"),
        counter="swapped",
        shares=(SWAPPED_SHARE, SWAPPED_SHARE),
        is_drawn=True,
    )
    scores = dict(SentencePairs.scores) | {"nsp": sentence_label.task}
    needed = "a document of two or more sentences to train on, for pairs of neighbouring segments"
    least_sentences = 2
    most_padding = 0.5
    purpose = "ordered pairs"
    pairs_per_chunk, least_pairs = 1.0, 2.0  # no sentence is used again

    def draw_pairs(
        self, pool: Pool, number: int, sequence_length: int, short_fraction: float, rng: np.random.Generator
    ) -> Iterator[PairPlaces]:
        """Draw the pairs of one pass over a document; the label of a pair is whether its segments are swapped."""
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
            yield (*second, *first, 1) if for_label < SWAPPED_SHARE else (*first, *second, 0)
            start = end
