"""Turn a pool of documents into masked instances: what the model has to learn from is decided here.

mlm_nsp   two segments, the second one random half of the time: Devlin et al. 2019, section 3.1 (`pairs`)
mlm       one text, filled to the end over sentences and documents: RoBERTa, section 4.2 (`packing`)
mlm_sop   two neighbouring segments, swapped half of the time: ALBERT, section 3.1 (`order`)
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from keras_bert_flow.text.masking import MaskedInstance, MaskingRule, mask_tokens
from keras_bert_flow.text.order import build_ordered_pairs
from keras_bert_flow.text.packing import pack_documents
from keras_bert_flow.text.pairs import TokenizedDocument, build_pairs, mask_pair
from keras_bert_flow.text.randomness import keyed_generator

MLM_NSP, MLM, MLM_SOP = "mlm_nsp", "mlm", "mlm_sop"
# What the two-way head of an objective learns; `mlm` has no such head.
SENTENCE_TASKS = {MLM_NSP: "next_sentence", MLM_SOP: "sentence_order"}
# What a label of 1 is called where such labels are counted.
LABEL_NAMES = {MLM_NSP: "random_next", MLM_SOP: "swapped"}


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


def build_instances(
    documents: Sequence[TokenizedDocument], copies: int, rule: InstanceRule, seed: int
) -> Iterator[MaskedInstance]:
    """Make the instances of a pool; they are a function of the documents, their order and the arguments.

    Args:
        documents: no two of them the same.
        copies: times each document is used, with other pairs or cuts, and other masks.
        rule: what to make.
        seed: of every choice.
    """
    make = {MLM_NSP: _build_next_sentences, MLM: _build_packed, MLM_SOP: _build_ordered}[rule.objective]
    yield from make(documents, copies, rule, seed)


def _build_next_sentences(documents, copies: int, rule: InstanceRule, seed: int) -> Iterator[MaskedInstance]:
    sentences = [document.sentences for document in documents]
    for number, document in enumerate(documents):
        others = sentences[:number] + sentences[number + 1 :]
        for copy in range(copies):
            rng = keyed_generator(seed, "pairs", document.id, copy)
            for pair in build_pairs(sentences[number], others, rule.sequence_length, rule.short_fraction, rng):
                yield mask_pair(pair, rule.cls_id, rule.sep_id, rule.masking, rng)


def _build_ordered(documents, copies: int, rule: InstanceRule, seed: int) -> Iterator[MaskedInstance]:
    for document in documents:
        for copy in range(copies):
            rng = keyed_generator(seed, "ordered pairs", document.id, copy)
            for pair in build_ordered_pairs(document.sentences, rule.sequence_length, rule.short_fraction, rng):
                yield mask_pair(pair, rule.cls_id, rule.sep_id, rule.masking, rng)


def _build_packed(documents, copies: int, rule: InstanceRule, seed: int) -> Iterator[MaskedInstance]:
    rng = keyed_generator(seed, "packing", *(document.id for document in documents))
    texts = [document.token_ids for document in documents]
    for token_ids in pack_documents(texts, rule.sequence_length, copies, rule.cls_id, rule.sep_id):
        masked, positions, mask_ids = mask_tokens(token_ids, rule.masking, rng)
        yield MaskedInstance(masked, np.zeros(len(masked), np.int32), positions, mask_ids)
