"""Fill sequences with text from end to end, over the borders of sentences and documents, for masked LM alone.

The documents of a pool stand in one row, in the order of their digests (so at random), with [SEP] between two; copies
of the row follow one another like laps of a circle. The row is cut where a sequence is full. So no token is lost, none
comes twice in a copy, each lap is cut at other places, and only the last sequence of a pool has padding.

Source: Liu et al. 2019 (RoBERTa), section 4.2, FULL-SENTENCES; arXiv:1907.11692. One rule differs: there a sequence
ends with the last sentence that fits whole, and half a sentence of room is left on average. Here the sentence is cut,
and goes on in the next sequence.
"""

from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from keras_bert_flow.text.objectives.objective import ROWS, Estimate, InstanceRule, Objective
from keras_bert_flow.text.pool import TokenizedDocument
from keras_bert_flow.text.rows import TokenRows, pad_texts

SPECIAL_TOKENS = 2  # [CLS] text [SEP]
PADDED_PER_DOCUMENT = 1 / 32  # the last, padded sequence of each pool of about 64 documents, twice that to be safe


class MaskedTokens(Objective):
    """Masked tokens alone, in one text that is filled to the end: RoBERTa."""

    needed = "text to train on"
    most_padding = 0.02
    is_divisible = True

    def make_rows(
        self, documents: Sequence[TokenizedDocument], copies: int, rule: InstanceRule, seed: int
    ) -> Iterator[TokenRows]:
        texts = pack_documents(
            [document.token_ids for document in documents], rule.sequence_length, copies, rule.cls_id, rule.sep_id
        )
        while batch := list(islice(texts, ROWS)):
            yield pad_texts(batch, rule.sequence_length)

    def estimate_instances(self, sequence_length: int, short_fraction: float) -> Estimate:
        room = sequence_length - SPECIAL_TOKENS

        def estimate(sentences: int, tokens: int) -> int:
            return int(1000 * ((tokens + 1) / room + PADDED_PER_DOCUMENT)) + 1  # [SEP] after a document

        return estimate


def pack_documents(
    documents: Sequence[np.ndarray], sequence_length: int, copies: int, cls_id: int, sep_id: int
) -> Iterator[np.ndarray]:
    """Yield sequences of token ids, int32, at most `sequence_length` long, [CLS] and [SEP] included.

    Args:
        documents: token ids of each document, none of them empty or holding `sep_id`.
        sequence_length: most tokens of a sequence.
        copies: how often to use the documents. Where all of them together are shorter than a sequence, each copy is a
            sequence of its own, so that no sequence holds a token twice.
    """
    room = sequence_length - SPECIAL_TOKENS
    border = np.array([sep_id], np.int32)
    row = np.concatenate([part for token_ids in documents for part in (token_ids, border)]).astype(np.int32)
    laps, copies = (copies, 1) if len(row) < room else (1, copies)
    for _ in range(laps):
        start, end = 0, len(row) * copies
        while start < end:
            if row[start % len(row)] == sep_id:
                start += 1  # the border of two documents is also the border of two sequences
                continue
            text = row.take(np.arange(start, min(start + room, end)), mode="wrap")
            start += len(text)
            yield np.concatenate([[cls_id], text[: len(text) - (text[-1] == sep_id)], [sep_id]]).astype(np.int32)
