"""Turn a pool of documents into masked instances: what the model has to learn from is decided here.

mlm_nsp   two segments, the second one random half of the time: Devlin et al. 2019, section 3.1 (`pairs`)
mlm       one text, filled to the end over sentences and documents: RoBERTa, section 4.2 (`packing`)
mlm_sop   two neighbouring segments, swapped half of the time: ALBERT, section 3.1 (`order`)
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from keras_bert_flow.text.masking import MaskedRows, MaskingRule, mask_rows
from keras_bert_flow.text.order import draw_ordered_pairs
from keras_bert_flow.text.packing import pack_documents
from keras_bert_flow.text.pairs import SPECIAL_TOKENS, PairPlaces, draw_pairs, truncate_pairs
from keras_bert_flow.text.pool import Pool, TokenizedDocument
from keras_bert_flow.text.randomness import keyed_generator
from keras_bert_flow.text.rows import TokenRows, join_pairs, pad_texts

MLM_NSP, MLM, MLM_SOP = "mlm_nsp", "mlm", "mlm_sop"
# What the two-way head of an objective learns; `mlm` has no such head.
SENTENCE_TASKS = {MLM_NSP: "next_sentence", MLM_SOP: "sentence_order"}
# What a label of 1 is called where such labels are counted.
LABEL_NAMES = {MLM_NSP: "random_next", MLM_SOP: "swapped"}
# objective → documents to train on, and why
NEEDED = {
    MLM_NSP: (2, "two or more different documents to train on, for pairs from different documents"),
    MLM: (1, "text to train on"),
    MLM_SOP: (1, "a document of two or more sentences to train on, for pairs of neighbouring segments"),
}
ROWS = 1024  # made at once, about 1 MB a matrix; what is drawn depends on it


@dataclass(frozen=True)
class InstanceRule:
    """How instances are made.

    Attributes:
        objective: `mlm_nsp`, `mlm` or `mlm_sop`.
        sequence_length: most tokens of an instance.
        short_fraction: share of passes over a document that aim at a random shorter length; not for `mlm`.
        cls_id: id of [CLS].
        sep_id: id of [SEP].
        masking: how tokens are hidden.
    """

    objective: str
    sequence_length: int
    short_fraction: float
    cls_id: int
    sep_id: int
    masking: MaskingRule


@dataclass(frozen=True)
class Instances:
    """Masked instances; see the two for what their matrices hold."""

    rows: TokenRows
    masked: MaskedRows


def build_instances(
    documents: Sequence[TokenizedDocument], copies: int, rule: InstanceRule, seed: int
) -> Iterator[Instances]:
    """Make the instances of a pool, ROWS at a time: a function of the documents, their order and the arguments.

    Args:
        documents: no two of them the same.
        copies: times each document is used, with other pairs or cuts, and other masks.
        rule: what to make.
        seed: of every choice.
    """
    make = {MLM_NSP: _build_next_sentences, MLM: _build_packed, MLM_SOP: _build_ordered}[rule.objective]
    rng = keyed_generator(seed, "masks", *(document.id for document in documents))
    for rows in make(documents, copies, rule, seed):
        yield Instances(rows, mask_rows(rows.token_ids, rows.lengths, rule.masking, rng))


def _build_next_sentences(documents, copies: int, rule: InstanceRule, seed: int) -> Iterator[TokenRows]:
    return _build_pairs(draw_pairs, "pairs", documents, copies, rule, seed)


def _build_ordered(documents, copies: int, rule: InstanceRule, seed: int) -> Iterator[TokenRows]:
    return _build_pairs(draw_ordered_pairs, "ordered pairs", documents, copies, rule, seed)


def _build_pairs(
    draw: Callable[..., Iterator[PairPlaces]], purpose: str, documents, copies: int, rule: InstanceRule, seed: int
) -> Iterator[TokenRows]:
    pool = Pool.of(documents)
    cutting = keyed_generator(seed, "truncation", *(document.id for document in documents))
    pairs = (
        pair
        for number, document in enumerate(documents)
        for copy in range(copies)
        for pair in draw(
            pool,
            number,
            rule.sequence_length,
            rule.short_fraction,
            keyed_generator(seed, purpose, document.id, copy),
        )
    )
    while batch := list(islice(pairs, ROWS)):
        table = np.array(batch, np.int64)  # (pairs, 5)
        places = truncate_pairs(table[:, :4], rule.sequence_length - SPECIAL_TOKENS, cutting)
        is_random_next = table[:, 4] > 0
        yield join_pairs(pool.token_ids, places, is_random_next, rule.sequence_length, rule.cls_id, rule.sep_id)


def _build_packed(documents, copies: int, rule: InstanceRule, seed: int) -> Iterator[TokenRows]:
    texts = pack_documents(
        [document.token_ids for document in documents], rule.sequence_length, copies, rule.cls_id, rule.sep_id
    )
    while batch := list(islice(texts, ROWS)):
        yield pad_texts(batch, rule.sequence_length)
