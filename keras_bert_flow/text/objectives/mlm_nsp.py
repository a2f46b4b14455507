"""Masked LM and next sentence prediction: segment pairs, with B following A or from another document.

What is shared by objectives with segment pairs, [CLS] A [SEP] B [SEP], is here as well.

Source: Devlin et al. 2019, section 3.1, task 2 and appendix A.2; google-research/bert,
`create_instances_from_document`. Its rules that are kept: the target length is drawn once for a pass over a document; a
chunk of one sentence always gets a random B (so a little more than half of the pairs do); sentences of a chunk that a
random B displaced are used again. One rule differs: a random B is never from the same document (there, after ten draws,
it can be), and if there is no other document to draw from, no pair is labelled random. A random B that begins with the
sentence that follows A, from a near copy of the document, is counted; it keeps its label.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, islice

import numpy as np

from keras_bert_flow.text.objectives.objective import (
    ROWS,
    Batch,
    Estimate,
    Features,
    InstanceRule,
    Objective,
    SentenceLabel,
)
from keras_bert_flow.text.rows import Pool, TokenizedDocument, TokenRows, join_pairs, keyed_generator

SPECIAL_TOKENS = 3  # [CLS] A [SEP] B [SEP]
# Position and length of A, position and length of B, all in tokens of the pool; the label, of which `MISTAKEN` is that
# of a random B that the text could go on with
PairPlaces = tuple[int, int, int, int, int]
MISTAKEN = 2
RANDOM_NEXT_SHARE = 0.5
# Chunks of one sentence always get a random B; where a third of the chunks are such, the share is 2/3.
HIGHEST_RANDOM_SHARE = 2 / 3


class SentencePairs(Objective):
    """Base class of objectives with masked tokens and a label of two segments.

    Attributes:
        purpose: key of the random numbers that the pairs are drawn with.
        pairs_per_chunk: average number of pairs per chunk, from above, in a document of many chunks.
        least_pairs: average number of pairs of a document shorter than a chunk, from above.
    """

    purpose: str
    pairs_per_chunk: float
    least_pairs: float

    @abstractmethod
    def draw_pairs(
        self, pool: Pool, number: int, sequence_length: int, short_fraction: float, rng: np.random.Generator
    ) -> Iterator[PairPlaces]:
        """Draw the pairs of one pass over a document; the segments of a pair together may be too long.

        Args:
            pool: this document, and the others, from which a random B may come.
            number: index of this document.
            sequence_length: most tokens of an instance, special tokens included.
            short_fraction: share of passes whose target length is drawn from 2 to the longest.
            rng: source of every random choice.
        """

    def make_rows(
        self, documents: Sequence[TokenizedDocument], copies: int, rule: InstanceRule, seed: int
    ) -> Iterator[TokenRows]:
        pool = Pool.of(documents)
        cutting = keyed_generator(seed, "truncation", *(document.id for document in documents))
        pairs = (
            pair
            for number, document in enumerate(documents)
            for copy in range(copies)
            for pair in self.draw_pairs(
                pool,
                number,
                rule.sequence_length,
                rule.short_fraction,
                keyed_generator(seed, self.purpose, document.id, copy),
            )
        )
        while batch := list(islice(pairs, ROWS)):
            table = np.array(batch, np.int64)  # (pairs, 5)
            places = truncate_pairs(table[:, :4], rule.sequence_length - SPECIAL_TOKENS, cutting)
            labels, mistaken = table[:, 4] > 0, int(np.count_nonzero(table[:, 4] == MISTAKEN))
            rows = join_pairs(pool.token_ids, places, labels, rule.sequence_length, rule.cls_id, rule.sep_id)
            yield replace(rows, mistaken_labels=mistaken)

    def estimate_instances(self, sequence_length: int, short_fraction: float) -> Estimate:
        room = sequence_length - SPECIAL_TOKENS
        harmonic = [0.0, *accumulate(1 / target for target in range(1, room + 1))]

        def estimate(sentences: int, tokens: int) -> int:
            most, pair_tokens = sentences // self.least_sentences, self.pairs_per_chunk * tokens
            full = min(most, max(self.least_pairs, pair_tokens / room + 1))
            # The average of `min(most, pair_tokens / target + 1)` over targets from 2 to the longest: `most` up to
            # `last`, and from there the sum of a harmonic series.
            last = min(room, max(1, int(pair_tokens / (most - 1)))) if most > 1 else room
            rest = pair_tokens * (harmonic[room] - harmonic[last]) + room - last
            short = max(full, ((last - 1) * most + rest) / max(1, room - 1))
            return int(1000 * (full + (short - full) * short_fraction)) + 1

        return estimate

    def make_batch(self, features: Features) -> Batch:
        """Add the label of the pair, `nsp`, and its weight, (batch,)."""
        x, y, weights = super().make_batch(features)
        labels = features["next_sentence_labels"][:, 0].astype("int32")
        return x, y | {"nsp": labels}, weights | {"nsp": np.ones(len(labels), "float32")}


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
    purpose = "pairs"
    # A chunk is used whole half of the time; otherwise what a random B displaced, half of it on average, is used again:
    # 4/3 pairs per chunk. A document shorter than a chunk gives up to 2 pairs on average.
    pairs_per_chunk, least_pairs = 1.45, 2.0

    def draw_pairs(
        self, pool: Pool, number: int, sequence_length: int, short_fraction: float, rng: np.random.Generator
    ) -> Iterator[PairPlaces]:
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
                opening, end_of_other = pool.firsts[other : other + 2]
                drawn = opening + int(for_sentence * (end_of_other - opening))  # the sentence with which B begins
                second = pool.place(drawn, pool.end_of_chunk(drawn, end_of_other, target - first[1]))
                follows = split < stop and pool.sentence_numbers[drawn] == pool.sentence_numbers[split]
                yield *first, *second, MISTAKEN if follows else 1
                start = split  # the rest of the chunk is used again
            else:
                if split < end:  # else a single sentence, and no other document to pair it with
                    yield *first, *pool.place(split, end), 0
                start = end


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
