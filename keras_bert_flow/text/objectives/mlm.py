"""Masked LM without pairs: fill sequences with text across the borders of sentences and documents.

The documents of a pool are concatenated in the order of their digests (so at random), with [SEP] between two; copies
follow one another like laps of a circle. The text is cut where a sequence is full. So no token is lost or occurs twice
in a copy, each lap is cut at other positions, and only the last sequence of a pool has padding.

Source: Liu et al. 2019 (RoBERTa), section 4.2, FULL-SENTENCES; arXiv:1907.11692. One rule differs: there, a sequence
ends with the last sentence that fits whole, and half a sentence of room is left on average. Here, the sentence is cut
and continues in the next sequence.
"""

from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from keras_bert_flow.text.objectives.objective import ROWS, Estimate, InstanceRule, Objective
from keras_bert_flow.text.pool import TokenizedDocument
from keras_bert_flow.text.rows import TokenRows, pad_texts

SPECIAL_TOKENS = 2  # [CLS] text [SEP]
PADDED_PER_DOCUMENT = 1 / 32  # one padded sequence per pool of about 64 documents, doubled to be safe


class MaskedTokens(Objective):
    """Masked LM alone, on fully packed sequences: RoBERTa."""

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
        documents: token ids of each document, none empty or containing `sep_id`.
        sequence_length: most tokens of a sequence.
        copies: how often to use the documents. If all of them together are shorter than a sequence, each copy is a
            sequence of its own, so that no sequence contains a token twice.
    """
    room = sequence_length - SPECIAL_TOKENS
    border = np.array([sep_id], np.int32)
    row = np.concatenate([part for token_ids in documents for part in (token_ids, border)]).astype(np.int32)
    laps, copies = (copies, 1) if len(row) < room else (1, copies)
    for _ in range(laps):
        start, end = 0, len(row) * copies
        while start < end:
            if row[start % len(row)] == sep_id:
                start += 1  # the border between two documents is also one between two sequences
                continue
            text = row.take(np.arange(start, min(start + room, end)), mode="wrap")
            start += len(text)
            yield np.concatenate([[cls_id], text[: len(text) - (text[-1] == sep_id)], [sep_id]]).astype(np.int32)
