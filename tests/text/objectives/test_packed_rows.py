"""Rows of whole texts: nothing is lost, best fit is by its definition, and hardly any room is left."""

from collections import Counter

import numpy as np
import pytest

from keras_bert_flow.text.objectives.mlm import estimate_packed
from keras_bert_flow.text.objectives.objective import InstanceRule, build_instances, find_objective
from keras_bert_flow.text.rows import BestFit, TokenizedDocument
from tests.oracles.instances import CLS, SEP, make_documents, make_rule


def make_texts(mean, count, seed=0):
    lengths = np.random.default_rng(seed).geometric(1 / mean, count)
    return [
        TokenizedDocument(f"t{number}", np.arange(1000, 1000 + length, dtype=np.int32), np.array([length]))
        for number, length in enumerate(lengths.tolist())
    ]


def build(documents, copies, sequence_length=64, unit="token"):
    rule = make_rule("mlm", unit, sequence_length)
    rule = InstanceRule(**vars(rule) | {"packing": True})
    return list(build_instances(documents, copies, rule, 1))


def split_row(token_ids, numbers):
    """Return the texts of a row, without padding."""
    return [token_ids[numbers == number] for number in range(1, numbers.max() + 1)]


@pytest.mark.parametrize("sequence_length", [8, 64, 512])
@pytest.mark.parametrize("copies", [1, 3])
def test_texts_are_whole_documents_or_full_pieces_of_them(sequence_length, copies):
    documents = make_documents()
    document_of = {int(token): document for document in documents for token in document.token_ids}
    counts = Counter()
    for built in build(documents, copies, sequence_length):
        rows = built.rows
        np.testing.assert_array_equal((rows.text_numbers > 0).sum(axis=1), rows.lengths)
        for token_ids, numbers in zip(rows.token_ids, rows.text_numbers, strict=True):
            assert set(np.diff(numbers[numbers > 0])) <= {0, 1} and numbers[0] == 1
            for text in split_row(token_ids, numbers):
                assert text[0] == CLS and text[-1] == SEP and not np.isin([CLS, SEP], text[1:-1]).any()
                whole = document_of[int(text[1])].token_ids
                place = int(text[1] - whole[0])
                np.testing.assert_array_equal(text[1:-1], whole[place : place + len(text) - 2])
                is_cut = len(text) - 2 < len(whole)
                assert not is_cut or place == 0 or len(text) == sequence_length or text[-2] == whole[-1]
                counts.update(text[1:-1].tolist())
    assert counts == Counter(dict.fromkeys(document_of, copies))


def test_copies_of_a_long_document_are_cut_at_other_places():
    (document,) = make_texts(1, 1)
    long = TokenizedDocument("long", np.arange(1000, 1500, dtype=np.int32), np.array([500]))
    starts = {
        int(text[1])
        for built in build([long, document], 4)
        for token_ids, numbers in zip(built.rows.token_ids, built.rows.text_numbers, strict=True)
        for text in split_row(token_ids, numbers)
    }
    assert len(starts) > 3 * (500 // 62)


@pytest.mark.parametrize("seed", range(20))
def test_rows_are_those_of_best_fit_by_its_definition(seed):
    rng = np.random.default_rng(seed)
    batches = [[np.zeros(n, int) for n in rng.integers(3, 30, rng.integers(1, 60))] for _ in range(3)]
    fit, expected, found = BestFit(40), [], {}
    for texts in batches:
        for text, (row, start, number) in zip(texts, fit.place([*map(len, texts)]), strict=True):
            found.setdefault(row, []).append((start, number, len(text)))
        for length in sorted(map(len, texts), reverse=True):
            fitting = [row for row in expected if sum(row) + length <= 40]
            if not fitting:
                expected.append(fitting := [])
                fitting = [fitting]
            max(fitting, key=sum).append(length)
    for row in found.values():  # one text after the other, numbered from 1
        ends = np.cumsum([0, *(length for _, _, length in sorted(row))])
        assert [part[:2] for part in sorted(row)] == [(end, number) for number, end in enumerate(ends[:-1], 1)]
    assert fit.counts == [len(found[row]) for row in range(len(found))]
    assert sorted(sum(part[2] for part in row) for row in found.values()) == sorted(map(sum, expected))


@pytest.mark.parametrize(("mean", "copies", "most"), [(12, 1, 0.02), (30, 1, 0.02), (30, 5, 0.01)])
def test_short_texts_leave_hardly_any_room(mean, copies, most):
    texts = [text for text in make_texts(mean, 1024) if len(text.token_ids) <= 126]
    lengths = np.concatenate([built.rows.lengths for built in build(texts, copies, 128)])
    assert 1 - lengths.mean() / 128 < most


@pytest.mark.parametrize("unit", ["token", "word", "span"])
def test_no_special_token_is_masked(unit):
    for built in build(make_texts(9, 200), 2, unit=unit):
        masked = built.masked
        for ids, count, positions, numbers in zip(
            masked.mask_ids, masked.counts, masked.positions, built.rows.text_numbers, strict=True
        ):
            assert not np.isin(ids[:count], [CLS, SEP]).any() and count > 0 and (numbers[positions[:count]] > 0).all()


@pytest.mark.parametrize("mean", [3, 20, 40, 70, 300])
def test_instances_are_estimated_from_above(mean):
    texts = make_texts(mean, 400)
    built = sum(len(made.rows.lengths) for made in build(texts, 3, 128))
    estimate = 3 * sum(estimate_packed(128)(1, len(text.token_ids)) for text in texts) / 1000
    assert 0.95 * built <= estimate <= 2.2 * built


def test_objectives_of_pairs_and_of_spans_are_not_packed():
    assert [name for name in ("mlm_nsp", "mlm", "mlm_sop", "mlm_sbo", "rtd") if find_objective(name).is_packable] == [
        "mlm",
        "rtd",
    ]
