from typing import get_args

import numpy as np
import pytest
from scipy import stats

from keras_bert_flow.config.text import RecordsConfig
from keras_bert_flow.text.masking import SPAN, TOKEN, WORD
from keras_bert_flow.text.objectives import OBJECTIVES
from keras_bert_flow.text.objectives.objective import find_objective
from keras_bert_flow.text.rows import TokenizedDocument
from tests.oracles.instances import FIRST_WORD, MASK, build, make_documents, original_of


def test_configuration_names_every_objective_and_unit():
    fields = RecordsConfig.model_fields
    assert get_args(fields["objective"].annotation) == (*OBJECTIVES,)
    assert get_args(fields["mask_unit"].annotation) == (TOKEN, WORD, SPAN)


def test_packed_instances_use_every_token_once_a_copy():
    found = np.concatenate([original_of(instance) for instance in build("mlm", copies=3)])
    words = np.concatenate([document.token_ids for document in make_documents()])
    assert sorted(found[found >= FIRST_WORD].tolist()) == sorted(words.tolist() * 3)


def test_packed_copies_are_cut_at_other_places():
    starts = [int(original_of(instance)[1]) for instance in build("mlm", copies=3)]
    assert len(set(starts)) > 0.9 * len(starts)


@pytest.mark.parametrize(("objective", "share"), [("mlm_nsp", 0.5), ("mlm_sop", 0.5)])
def test_sentence_labels_have_their_share(objective, share):
    # With sentences of 20 tokens and a fixed target of 61 every chunk has several sentences, but a last one of one,
    # which is always random: left out here by documents that are looked at in their first pair only.
    labels, first_of = [], set()
    documents = [
        TokenizedDocument(f"d{number}", np.arange(1000 + 200 * number, 1200 + 200 * number), np.full(10, 20))
        for number in range(100)
    ]
    for instance in build(objective, documents, copies=10):
        document = int(original_of(instance)[1] - 1000) // 200
        is_first = min(original_of(instance)[original_of(instance) >= 1000] - 1000) % 200 < 20
        if is_first:
            labels.append(int(instance.is_random_next))
            first_of.add(document)
    assert len(labels) > 800
    assert stats.binomtest(sum(labels), len(labels), share).pvalue > 0.001


@pytest.mark.parametrize("unit", [TOKEN, SPAN])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_masked_tokens_are_80_10_10(objective, unit):
    counts = np.zeros(3)
    for instance in build(objective, copies=4, unit=unit):
        replaced = instance.token_ids[instance.mask_positions]
        hidden, kept = replaced == MASK, replaced == instance.mask_ids
        counts += [hidden.sum(), kept.sum(), (~hidden & ~kept).sum()]
    if unit == SPAN or find_objective(objective).has_spans:
        counts = np.round(counts / 4)  # tokens of a span are not independent: about as many as there are spans
    assert stats.chisquare(counts, counts.sum() * np.array([0.8, 0.1, 0.1])).pvalue > 0.001


def test_unknown_objective_is_refused():
    with pytest.raises(
        ValueError, match=r"must be one of mlm_nsp, mlm, mlm_sop, mlm_sbo, rtd\. Received: 'electra'\. Use one"
    ):
        find_objective("electra")
