"""Estimates of instances, beside what is built: never too low by more than chance, never far too high."""

import numpy as np
import pytest

from keras_bert_flow.text.masking import MaskingRule
from keras_bert_flow.text.objectives import OBJECTIVES
from keras_bert_flow.text.objectives.objective import InstanceRule, build_instances, find_objective
from keras_bert_flow.text.rows import TokenizedDocument

COPIES = 3
SHAPES = [(1, 10), (1, 200), (3, 20), (6, 25), (15, 2), (40, 25)]  # sentences of a document, tokens of a sentence


def make_documents(sentences, tokens, count=64):
    rng = np.random.default_rng(0)
    lengths = [rng.poisson(tokens, max(1, rng.poisson(sentences))).clip(1).astype(np.int32) for _ in range(count)]
    return [
        TokenizedDocument(f"{number:032x}", rng.integers(5, 99, each.sum(), np.int32), each)
        for number, each in enumerate(lengths)
    ]


@pytest.mark.parametrize("length", [64, pytest.param(512, marks=pytest.mark.slow)])
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("short_fraction", [0, 0.1])
def test_instances_are_estimated_from_above(objective, length, short_fraction):
    masking = MaskingRule(0.15, 20, 4, (2, 3), np.ones(99, bool))
    rule = InstanceRule(objective, length, short_fraction, 2, 3, masking)
    estimate = find_objective(objective).estimate_instances(length, short_fraction)
    for shape in SHAPES:
        documents = make_documents(*shape)
        sizes = [(len(document.sentence_lengths), len(document.token_ids)) for document in documents]
        estimated = COPIES * sum(estimate(*size) for size in sizes) / 1000
        built = sum(len(instances.rows.lengths) for instances in build_instances(documents, COPIES, rule, 1))
        # With 64 documents chance takes off a few hundredths; packed texts of less than a sequence are mostly padding.
        assert 0.95 * built <= estimated <= 2.2 * built + 2 * COPIES, (shape, estimated, built)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_shortest_sequences_have_an_estimate(objective):
    assert find_objective(objective).estimate_instances(8, 1.0)(1, 1) >= 0
