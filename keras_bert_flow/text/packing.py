"""Fill sequences with text from end to end, over the borders of sentences and documents, for masked LM alone.

The documents of a pool stand in one row, in the order of their digests (so at random), with [SEP] between two; copies
of the row follow one another like laps of a circle. The row is cut where a sequence is full. So no token is lost, none
comes twice in a copy, each lap is cut at other places, and only the last sequence of a pool has padding.

Source: Liu et al. 2019 (RoBERTa), section 4.2, FULL-SENTENCES; arXiv:1907.11692. One rule differs: there a sequence
ends with the last sentence that fits whole, and half a sentence of room is left on average. Here the sentence is cut,
and goes on in the next sequence.
"""

from collections.abc import Iterator, Sequence

import numpy as np

PACKED_SPECIAL_TOKENS = 2  # [CLS] text [SEP]


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
    room = sequence_length - PACKED_SPECIAL_TOKENS
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
