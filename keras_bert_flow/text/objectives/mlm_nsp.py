"""Masked LM and next sentence prediction: segment pairs, with B following A or from another document.

Source: Devlin et al. 2019, section 3.1, task 2 and appendix A.2; google-research/bert,
`create_instances_from_document`. Its rules that are kept: the target length is drawn once for a pass over a document; a
chunk of one sentence always gets a random B (so a little more than half of the pairs do); sentences of a chunk that a
random B displaced are used again. One rule differs: a random B is never from the same document (there, after ten draws,
it can be), and if there is no other document to draw from, no pair is labelled random. A random B that begins with the
sentence that follows A, from a near copy of the document, is counted; it keeps its label.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from keras_bert_flow.text.objectives.objective import Estimate, InstanceRule, SentenceLabel
from keras_bert_flow.text.objectives.pairs import (
    MISTAKEN,
    SPECIAL_TOKENS,
    PairEstimate,
    PairPlaces,
    SentencePairs,
    draw_target,
    make_pair_rows,
)
from keras_bert_flow.text.rows import Pool, TokenizedDocument, TokenRows

RANDOM_NEXT_SHARE = 0.5
# Chunks of one sentence always get a random B; where a third of the chunks are such, the share is 2/3.
HIGHEST_RANDOM_SHARE = 2 / 3
# A chunk is used whole half of the time; otherwise what a random B displaced, half of it on average, is used again: 4/3
# pairs per chunk. A document shorter than a chunk gives up to 2 pairs on average.
PAIRS_PER_CHUNK, LEAST_PAIRS = 1.45, 2.0


class NextSentence(SentencePairs):
    """Masked LM and next sentence prediction: BERT."""

    sentence_label = SentenceLabel(
        task="next_sentence",
        meanings=("B follows A", "B is random"),
        counter="random_next",
        shares=(RANDOM_NEXT_SHARE, HIGHEST_RANDOM_SHARE),
        usual="a little over half",
        remedies=(
            "Pairs need documents to draw from: give more of them, or put blank lines between them.",
            "Most chunks are of one sentence: give longer documents, shorter sentences or a longer sequence_length.",
        ),
        mistaken="random_next_that_follows",
    )
    scores = dict(SentencePairs.scores) | {"nsp": sentence_label.task}
    needed_documents = 2
    needed = "two or more different documents to train on, for pairs from different documents"
    most_padding = 0.5

    def make_rows(
        self, documents: Sequence[TokenizedDocument], copies: int, rule: InstanceRule, seed: int
    ) -> Iterator[TokenRows]:
        return make_pair_rows(draw_pairs, "pairs", documents, copies, rule, seed)

    def estimate_instances(self, sequence_length: int, short_fraction: float) -> Estimate:
        return PairEstimate(sequence_length, short_fraction, 1, PAIRS_PER_CHUNK, LEAST_PAIRS)


def draw_pairs(
    pool: Pool, number: int, sequence_length: int, short_fraction: float, rng: np.random.Generator
) -> Iterator[PairPlaces]:
    """Draw the pairs of one pass over a document; the segments of a pair together may be too long.

    Args:
        pool: this document, and the others, from which a random B may come.
        number: index of this document.
        sequence_length: most tokens of an instance, special tokens included.
        short_fraction: share of passes whose target length is drawn from 2 to the longest.
        rng: source of every random choice.
    """
    start, stop = pool.firsts[number : number + 2]
    others = len(pool.firsts) - 2
    target = draw_target(sequence_length - SPECIAL_TOKENS, short_fraction, rng)
    draws = iter(rng.random((stop - start, 4)).tolist())  # enough for a pair per sentence; one by one is far slower
    while start < stop:
        for_split, for_label, for_document, for_sentence = next(draws)
        end = pool.end_of_chunk(start, stop, target)
        split = start + 1 + int(for_split * (end - start - 1))
        first = pool.place(start, split)
        if (split == end or for_label < RANDOM_NEXT_SHARE) and others:
            other = int(for_document * others)
            other += other >= number
            drawn = _draw_sentence(pool, other, for_sentence)
            second = pool.place(drawn, pool.end_of_chunk(drawn, pool.firsts[other + 1], target - first[1]))
            follows = split < stop and pool.sentence_numbers[drawn] == pool.sentence_numbers[split]
            yield *first, *second, MISTAKEN if follows else 1
            start = split  # the rest of the chunk is used again
        else:
            if split < end:  # else a single sentence, and no other document to pair it with
                yield *first, *pool.place(split, end), 0
            start = end


def _draw_sentence(pool: Pool, number: int, draw: float) -> int:
    """Return a random sentence of a document, with which B begins."""
    first, stop = pool.firsts[number : number + 2]
    return first + int(draw * (stop - first))
