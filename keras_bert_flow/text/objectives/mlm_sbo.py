"""Masked LM and span boundaries: predict the tokens of a span also from the two tokens around it, as in SpanBERT.

An instance is `[CLS] text [SEP]`: consecutive whole sentences of one document, as many as fit, from its beginning to
its end. In each copy of a document but the first, the first of several sequences has a random limit, so that copies
are cut at other places. Masks are merged spans of words; see `text.masking.choose_merged_spans`.

Source: Joshi et al. 2020 (SpanBERT), sections 3.1 to 3.3, arXiv:1907.10529; facebookresearch/SpanBERT. Rules that
differ from their code: a sentence that is too long is cut, which they drop; the number of masks counts [CLS] and
[SEP], as in BERT; random replacements are drawn from the whole vocabulary, also as in BERT, and not by the frequency
of tokens.
"""

from collections.abc import Iterator, Sequence
from itertools import islice, pairwise

import numpy as np

from keras_bert_flow.text.objectives.mlm import SPECIAL_TOKENS, MaskedTokens
from keras_bert_flow.text.objectives.objective import ROWS, Batch, Estimate, Features, InstanceRule
from keras_bert_flow.text.rows import TokenizedDocument, TokenRows, keyed_generator, pad_texts

MAX_SPAN_TARGETS = 15  # of a span, the first tokens that are predicted from its boundaries; README of SpanBERT
LEFT, RIGHT, OFFSETS = "left_boundaries", "right_boundaries", "span_offsets"


class SpanBoundary(MaskedTokens):
    """Masked LM and span boundary objective: SpanBERT."""

    most_padding = 0.5
    is_packable = False
    has_words_head = False
    has_spans = True
    scores = dict(MaskedTokens.scores) | {"sbo": "span_boundary"}

    def make_rows(
        self, documents: Sequence[TokenizedDocument], copies: int, rule: InstanceRule, seed: int
    ) -> Iterator[TokenRows]:
        room = rule.sequence_length - SPECIAL_TOKENS
        texts = (
            np.concatenate([[rule.cls_id], document.token_ids[start:end], [rule.sep_id]]).astype(np.int32)
            for copy in range(copies)
            for document in documents
            for start, end in pairwise(cut_copy(document, copy, room, seed))
        )
        while batch := list(islice(texts, ROWS)):
            yield pad_texts(batch, rule.sequence_length)

    def estimate_instances(self, sequence_length: int, short_fraction: float) -> Estimate:
        room = sequence_length - SPECIAL_TOKENS

        def estimate(sentences: int, tokens: int) -> int:
            # On average half a sentence of room is left, but a text that is too long for a sequence fills it.
            filled = max(room / 2, room - tokens / max(1, sentences) / 2)
            return int(1000 * (tokens / filled + 1)) if tokens > room else 1000

        return estimate

    def make_batch(self, features: Features) -> Batch:
        """Add the boundaries of the span of each masked token, and its place in the span, to the model's inputs.

        `left_boundaries`, `right_boundaries` and `span_offsets` are int32, (batch, masks_per_sequence). The labels of
        `sbo` are those of `mlm`. Its weights are 1 for the first `MAX_SPAN_TARGETS` tokens of a span with a word of
        the text on both sides, and 0 for other tokens, whose boundaries and offsets are 0.
        """
        x, y, weights = super().make_batch(features)
        lengths = np.count_nonzero(x["padding_mask"], axis=1)
        left, right, offsets = find_boundaries(x["mask_positions"], features["masked_lm_span_ids"])
        is_target = (weights["mlm"] > 0) & (left > 0) & (right < lengths[:, None] - 1) & (offsets < MAX_SPAN_TARGETS)
        places = {LEFT: left, RIGHT: right, OFFSETS: offsets}
        x = x | {name: (values * is_target).astype("int32") for name, values in places.items()}
        return x, y | {"sbo": y["mlm"]}, weights | {"sbo": is_target.astype("float32")}


def cut_copy(document: TokenizedDocument, copy: int, room: int, seed: int) -> list[int]:
    """Return where a copy of a document is cut into sequences; see `cut_sentences`."""
    first = room
    if copy and len(document.token_ids) > room:
        first = int(keyed_generator(seed, "first sequence", document.id, copy).integers(room // 2 + 1, room + 1))
    return cut_sentences(document.sentence_lengths, room, first)


def cut_sentences(lengths: np.ndarray, room: int, first: int) -> list[int]:
    """Return where a document is cut into sequences of whole sentences, its beginning and end included.

    Args:
        lengths: int, (sentences,). Tokens of each.
        room: most tokens of a sequence. A sentence with more is cut after each of as many.
        first: most tokens of the first sequence, at most `room`.
    """
    ends = np.cumsum(lengths)
    total, cuts, most = int(ends[-1]), [0], first
    while cuts[-1] < total:
        fitting = int(np.searchsorted(ends, cuts[-1] + most, side="right"))  # sentences that end by then
        end = int(ends[fitting - 1]) if fitting else 0
        cuts.append(end if end > cuts[-1] else cuts[-1] + most)
        most = room
    return cuts


def find_boundaries(positions: np.ndarray, span_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return for each masked token the positions around its span, and its place in the span.

    Args:
        positions: int, (rows, masks). Positions of masked tokens, ascending, and filler.
        span_ids: int, (rows, masks). The number of the span of each token, ascending; 0 for filler.
    Returns:
        The position before the span, that after it, and the number of the token in it from 0, int, (rows, masks).
    """
    slots = np.arange(positions.shape[1])
    changes = np.diff(span_ids, axis=1, prepend=-1) != 0  # slots that begin a span
    first = np.maximum.accumulate(np.where(changes, slots, 0), axis=1)
    ends = np.diff(span_ids, axis=1, append=-1) != 0  # slots that end one
    last = np.minimum.accumulate(np.where(ends, slots, slots[-1])[:, ::-1], axis=1)[:, ::-1]
    start, end = (np.take_along_axis(positions, slot, axis=1) for slot in (first, last))
    return start - 1, end + 1, positions - start
