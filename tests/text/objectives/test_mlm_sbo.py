"""Span boundary objective: sequences of one document, and the boundaries and places of the tokens of a span."""

import numpy as np
import pytest

from keras_bert_flow.config.text import RecordsConfig
from keras_bert_flow.data.pretraining import pretraining_dataset
from keras_bert_flow.data.pretraining_records import PretrainingRecords
from keras_bert_flow.text.objectives.mlm_sbo import MAX_SPAN_TARGETS, cut_sentences
from keras_bert_flow.text.objectives.objective import find_objective
from keras_bert_flow.text.rows import TokenizedDocument
from tests.oracles.instances import CLS, FIRST_WORD, SEP, build, make_documents, original_of
from tests.oracles.objective_records import write_objective_records

pytestmark = pytest.mark.any_backend


def texts_of(copies, **settings):
    return [original_of(instance)[1:-1] for instance in build("mlm_sbo", copies=copies, **settings)]


def test_sequences_are_whole_sentences_of_one_document():
    documents = make_documents()
    borders = {0}
    for document in documents:
        borders.update((document.token_ids[0] + np.cumsum(document.sentence_lengths)).tolist())
    firsts = {int(document.token_ids[0]) for document in documents}
    texts = texts_of(copies=3)
    for text in texts:
        assert len(text) <= 62 and np.all(np.diff(text) == 1)
        assert int(text[0]) in borders | firsts and int(text[-1]) + 1 in borders
        assert not firsts & set(text[1:].tolist())
    everything = np.concatenate([document.token_ids for document in documents])
    assert sorted(np.concatenate(texts).tolist()) == sorted(everything.tolist() * 3)


def test_sequences_of_copies_are_cut_at_other_places():
    documents = [TokenizedDocument("d", np.arange(FIRST_WORD, FIRST_WORD + 400), np.full(80, 5))]
    texts = texts_of(copies=4, documents=documents)
    assert [len(text) for text in texts[:6]] == [60] * 6  # the first copy: as many as fit
    assert len({int(text[0]) for text in texts}) > 15  # of 4 × 7; by the limits some meet
    short = [TokenizedDocument("d", np.arange(FIRST_WORD, FIRST_WORD + 50), np.full(10, 5))]
    assert [len(text) for text in texts_of(copies=4, documents=short)] == [50] * 4


@pytest.mark.parametrize(
    ("lengths", "first", "cuts"),
    [
        ([4, 4, 4], 10, [0, 8, 12]),
        ([10, 1], 10, [0, 10, 11]),
        ([3, 25, 2], 10, [0, 3, 13, 23, 30]),  # the sentence that is too long is cut
        ([4, 4, 4], 5, [0, 4, 12]),
        ([8, 4], 5, [0, 5, 12]),  # the first sequence has less room than its first sentence
    ],
)
def test_documents_are_cut_between_sentences(lengths, first, cuts):
    assert cut_sentences(np.array(lengths), 10, first) == cuts


def make_features(positions, spans, length, columns=40):
    filler = [0] * (20 - len(positions))
    weights = [1.0] * len(positions) + filler
    features = {
        "input_ids": [CLS, *range(1000, 1000 + length - 2), SEP] + [0] * (columns - length),
        "input_mask": [1] * length + [0] * (columns - length),
        "segment_ids": [0] * columns,
        "masked_lm_positions": [*positions, *filler],
        "masked_lm_ids": [place + 2000 for place in positions] + filler,
        "masked_lm_span_ids": [*spans, *filler],
        "masked_lm_weights": weights,
    }
    kinds = {"masked_lm_weights": np.float32}
    return {name: np.array([values], kinds.get(name, np.int64)) for name, values in features.items()}


def test_targets_are_spans_with_a_word_on_both_sides():
    # Of [CLS] and 10 words and [SEP]: one span at the beginning, one inside, one at the end.
    features = make_features([1, 4, 5, 6, 9, 10], [1, 2, 2, 2, 3, 3], length=12)
    x, y, weights = find_objective("mlm_sbo").make_batch(features)
    assert weights["sbo"][0].tolist() == [0, 1, 1, 1, 0, 0] + [0] * 14
    assert weights["mlm"][0].tolist() == [1] * 6 + [0] * 14
    assert x["left_boundaries"][0].tolist() == [0, 3, 3, 3, 0, 0] + [0] * 14
    assert x["right_boundaries"][0].tolist() == [0, 7, 7, 7, 0, 0] + [0] * 14
    assert x["span_offsets"][0].tolist() == [0, 0, 1, 2, 0, 0] + [0] * 14
    np.testing.assert_array_equal(y["sbo"], y["mlm"])
    assert {x[name].dtype.name for name in ("left_boundaries", "right_boundaries", "span_offsets")} == {"int32"}


def test_targets_are_the_first_tokens_of_a_long_span():
    x, _, weights = find_objective("mlm_sbo").make_batch(make_features([*range(2, 20)], [1] * 18, length=22))
    assert weights["sbo"][0].tolist() == [1] * MAX_SPAN_TARGETS + [0] * 5
    assert x["span_offsets"][0].tolist() == [*range(MAX_SPAN_TARGETS)] + [0] * 5
    assert set(x["right_boundaries"][0, :MAX_SPAN_TARGETS].tolist()) == {20}


@pytest.mark.parametrize(("masking", "length"), [("static", None), ("dynamic", None), ("dynamic", 9)])
def test_boundaries_are_shown_whatever_the_masks(tmp_path, masking, length):
    records = PretrainingRecords(write_objective_records(tmp_path / "r", "mlm_sbo"), sequence_length=length)
    targets = 0
    for number, (x, _, weights) in enumerate(pretraining_dataset(records, 8, masking=masking)):
        for row, slot in np.argwhere(weights["sbo"] > 0):
            masked = set(x["mask_positions"][row][weights["mlm"][row] > 0].tolist())
            left, right = (int(x[name][row, slot]) for name in ("left_boundaries", "right_boundaries"))
            assert set(range(left + 1, right)) <= masked and not {left, right} & masked
            assert x["mask_positions"][row, slot] == left + 1 + x["span_offsets"][row, slot]
            assert left > 0 and right < x["padding_mask"][row].sum() - 1
            targets += 1
        if number == 20:
            break
    assert targets > 50


def test_records_of_spans_need_their_numbers(tmp_path):
    folder = write_objective_records(tmp_path / "mlm", "mlm", "span")
    assert "masked_lm_span_ids" not in PretrainingRecords(folder)[0]
    records = PretrainingRecords(folder)
    records.objective = "mlm_sbo"
    with pytest.raises(ValueError, match="another `masked_lm_span_ids` in record 0 of .*Rebuild the records"):
        records[0]
    record = PretrainingRecords(write_objective_records(tmp_path / "mlm_sbo", "mlm_sbo"))[0]
    assert record["masked_lm_span_ids"].max() >= 1


def test_objective_of_spans_masks_spans():
    assert RecordsConfig(objective="mlm_sbo").mask_unit == "span"
    assert RecordsConfig(objective="mlm").mask_unit == "token"
    with pytest.raises(ValueError, match="must be span with the objective mlm_sbo. Received: word. Leave it out"):
        RecordsConfig(objective="mlm_sbo", mask_unit="word")
