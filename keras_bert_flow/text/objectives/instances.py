"""Build masked pre-training instances from a pool of documents."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from keras_bert_flow.text.masking import MaskedRows, mask_rows
from keras_bert_flow.text.objectives.objective import InstanceRule
from keras_bert_flow.text.objectives.registry import find_objective
from keras_bert_flow.text.pool import TokenizedDocument
from keras_bert_flow.text.randomness import keyed_generator
from keras_bert_flow.text.rows import TokenRows


@dataclass(frozen=True)
class Instances:
    """Masked instances; see `TokenRows` and `MaskedRows` for the matrices."""

    rows: TokenRows
    masked: MaskedRows


def build_instances(
    documents: Sequence[TokenizedDocument], copies: int, rule: InstanceRule, seed: int
) -> Iterator[Instances]:
    """Make the instances of a pool, ROWS at a time, as a pure function of the documents, their order and the arguments.

    Args:
        documents: all different.
        copies: times each document is used, with other pairs or cuts, and other masks.
        rule: how instances are made.
        seed: seed of every random choice.
    """
    rng = keyed_generator(seed, "masks", *(document.id for document in documents))
    for rows in find_objective(rule.objective).make_rows(documents, copies, rule, seed):
        yield Instances(rows, mask_rows(rows.token_ids, rows.lengths, rule.masking, rng))
