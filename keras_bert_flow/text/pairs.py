"""Cut documents into pairs of segments, B following A or taken from another document.

Source: Devlin et al. 2019, section 3.1, task 2 and appendix A.2; google-research/bert,
`create_instances_from_document`. Its rules, kept: the target length is drawn once for a pass over a document; a chunk
of one sentence always gets a random B (so a little more than half of the pairs do); sentences of a chunk that a random
B displaced are used again. One rule differs: a random B is never from the same document (there, after ten draws, it
can be), and where there is no other document to draw from, no pair is labelled random.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from keras_bert_flow.text.masking import MaskedInstance, MaskingRule, mask_tokens

RANDOM_NEXT_SHARE = 0.5
SPECIAL_TOKENS = 3  # [CLS] A [SEP] B [SEP]


@dataclass(frozen=True)
class TokenizedDocument:
    """A document as sentences of token ids; `id` is the digest of its text."""

    id: str
    token_ids: np.ndarray  # int32, (tokens,)
    sentence_lengths: np.ndarray  # int32, (sentences,), none of them 0

    @property
    def sentences(self) -> list[np.ndarray]:
        return np.split(self.token_ids, np.cumsum(self.sentence_lengths)[:-1])


@dataclass(frozen=True)
class SegmentPair:
    """Two segments of token ids, none empty, together at most `sequence_length - 3` tokens.

    `is_random_next` says that the second does not follow the first: it is random, or, for `mlm_sop`, the one before.
    """

    first: np.ndarray
    second: np.ndarray
    is_random_next: bool


def build_pairs(
    sentences: Sequence[np.ndarray],
    others: Sequence[Sequence[np.ndarray]],
    sequence_length: int,
    short_fraction: float,
    rng: np.random.Generator,
) -> Iterator[SegmentPair]:
    """Make one pass over a document.

    Args:
        sentences: token ids of each sentence of the document.
        others: sentences of the documents that a random B may come from; this document is not among them.
        sequence_length: most tokens of an instance, special tokens included.
        short_fraction: share of passes whose target length is drawn from 2 to the longest.
        rng: source of every choice.
    """
    longest = sequence_length - SPECIAL_TOKENS
    target = draw_target(longest, short_fraction, rng)
    start = 0
    while start < len(sentences):
        end = end_of_chunk(sentences, start, target)
        chunk = sentences[start:end]
        split = int(rng.integers(1, len(chunk))) if len(chunk) > 1 else 1
        first = np.concatenate(chunk[:split])
        is_random_next = len(chunk) == 1 or rng.random() < RANDOM_NEXT_SHARE
        if is_random_next and others:
            second = _draw_random_segment(others, target - len(first), rng)
            start += split  # the rest of the chunk comes again
        elif len(chunk) > 1:
            second, is_random_next = np.concatenate(chunk[split:]), False
            start = end
        else:
            start = end
            continue  # a single sentence, and no other document to pair it with
        yield SegmentPair(*truncate_pair(first, second, longest, rng), is_random_next)


def draw_target(longest: int, short_fraction: float, rng: np.random.Generator) -> int:
    """Draw the length that the chunks of one pass over a document aim at, tokens."""
    return int(rng.integers(2, longest, endpoint=True)) if rng.random() < short_fraction else longest


def end_of_chunk(sentences: Sequence[np.ndarray], start: int, target: int) -> int:
    """Return the sentence behind a chunk: as many sentences as it takes to reach `target` tokens."""
    length = 0
    for end in range(start, len(sentences)):
        length += len(sentences[end])
        if length >= target:
            return end + 1
    return len(sentences)


def truncate_pair(
    first: np.ndarray, second: np.ndarray, longest: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Shorten two segments to `longest` tokens in all: always the longer one, at front or back by a coin toss."""
    lengths = len(first), len(second)
    excess = sum(lengths) - longest
    if excess <= 0:
        return first, second
    at_front = rng.random(excess) < 0.5
    longer = 0 if lengths[0] > lengths[1] else 1
    alone = min(excess, abs(lengths[0] - lengths[1]))  # cuts until both are of one length; then in turn, B first
    cuts = {0: at_front[alone + 1 :: 2], 1: at_front[alone::2]}
    cuts[longer] = np.concatenate([at_front[:alone], cuts[longer]])
    return tuple(
        segment[(fronts := int(np.count_nonzero(cuts[side]))) : len(segment) - (len(cuts[side]) - fronts)]
        for side, segment in enumerate((first, second))
    )


def mask_pair(
    pair: SegmentPair, cls_id: int, sep_id: int, rule: MaskingRule, rng: np.random.Generator
) -> MaskedInstance:
    """Join a pair with its special tokens and hide some of its tokens."""
    token_ids = np.concatenate([[cls_id], pair.first, [sep_id], pair.second, [sep_id]]).astype(np.int32)
    segment_ids = np.zeros(len(token_ids), np.int32)
    segment_ids[len(pair.first) + 2 :] = 1
    masked, positions, mask_ids = mask_tokens(token_ids, rule, rng)
    return MaskedInstance(masked, segment_ids, positions, mask_ids, pair.is_random_next)


def _draw_random_segment(others: Sequence[Sequence[np.ndarray]], target: int, rng: np.random.Generator) -> np.ndarray:
    """Take sentences from a random place of a random document until `target` tokens; at least one sentence."""
    sentences = others[int(rng.integers(len(others)))]
    start = int(rng.integers(len(sentences)))
    return np.concatenate(sentences[start : end_of_chunk(sentences, start, target)])
