"""Long records cut into sequences: no token is lost, masks are new ones, and the rest of a document is its context."""

import numpy as np
import pytest

from keras_bert_flow.data.pretraining import ordered_batches, pretraining_dataset
from keras_bert_flow.data.pretraining_records import PretrainingRecords
from keras_bert_flow.results.manifest import read_manifest, write_manifest
from keras_bert_flow.text.objectives.mlm import count_sequences, cut_record
from tests.data.test_dynamic_masking import assert_equal, rows_of
from tests.oracles.objective_records import CLS, MASKED_FRACTION, SEP, write_objective_records

pytestmark = pytest.mark.any_backend
RECORD_LENGTH, LENGTH = 38, 14  # 3 sequences of 12 tokens


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cutting") / "records"
    return write_objective_records(folder, "mlm", sequence_length=RECORD_LENGTH)


def make_record(*documents):
    """Return a record with the documents, [SEP] between them."""
    text = [token for document in documents for token in (*document, SEP)]
    return np.array([CLS, *text])


def cut_all(tokens, length=LENGTH, record_length=RECORD_LENGTH):
    return [
        cut_record(tokens, number, length, record_length) for number in range(count_sequences(record_length, length))
    ]


def test_sequences_of_a_full_record_are_its_text():
    tokens = make_record(range(5, 22), range(100, 118))
    cut = cut_all(tokens)
    assert len(cut) == 3
    for sequence in cut:
        assert sequence["input_ids"].shape == (LENGTH,)
        assert (sequence["input_ids"][0], sequence["input_ids"][-1]) == (CLS, SEP)
        assert sequence["input_mask"].all()
    np.testing.assert_array_equal(np.concatenate([sequence["input_ids"][1:-1] for sequence in cut]), tokens[1:-1])


def test_context_is_the_rest_of_the_documents_of_a_sequence():
    first, second, third = list(range(100, 116)), list(range(200, 204)), list(range(300, 314))
    contexts = [
        sequence["context_ids"][sequence["context_weights"] > 0].tolist()
        for sequence in cut_all(make_record(first, second, third))
    ]
    # 12 of the first; 4 of the first, a border, 4 of the second, a border, 2 of the third; 12 of the third.
    assert contexts == [first[12:], first[:12] + third[2:], third[:2]]


@pytest.mark.parametrize("words", [1, 5, 12, 13, 30])
def test_a_record_that_is_not_full_is_cut_within_its_text(words):
    text = list(range(100, 100 + words))
    for sequence in cut_all(make_record(text)):
        tokens = sequence["input_ids"][sequence["input_mask"] > 0].tolist()
        seen = tokens[1:-1]
        assert (tokens[0], tokens[-1], len(seen)) == (CLS, SEP, min(words, LENGTH - 2))
        assert "".join(map(chr, seen)) in "".join(map(chr, text))
        context = sequence["context_ids"][sequence["context_weights"] > 0]
        assert sorted([*seen, *context]) == text
        assert not sequence["input_ids"][len(tokens) :].any()
    assert sequence["input_ids"][len(tokens) - 2] == text[-1]  # the last one ends with the text


def test_lengths_that_do_not_divide_overlap_and_lose_nothing():
    tokens = make_record(range(5, 40))
    cut = cut_all(tokens, length=20)
    assert len(cut) == 2
    assert {*np.concatenate([sequence["input_ids"] for sequence in cut])} == {*tokens}


def test_training_sees_each_token_once_an_epoch_under_masks_of_the_length(folder):
    whole, cut = PretrainingRecords(folder), PretrainingRecords(folder, sequence_length=LENGTH)
    assert len(cut) == 3 * len(whole)
    batches = [next(iter(pretraining_dataset(cut, len(cut), seed=3, masking="dynamic")))]
    rows = rows_of(batches)
    full = [record for record in whole if record["input_mask"].all()]
    found = {tuple(row["original"]) for row in rows}
    for record in full:
        tokens = record["input_ids"].copy()
        is_real = record["masked_lm_weights"] > 0
        tokens[record["masked_lm_positions"][is_real]] = record["masked_lm_ids"][is_real]
        for start in range(1, RECORD_LENGTH - 1, LENGTH - 2):
            assert (CLS, *tokens[start : start + LENGTH - 2], SEP) in found
    counts = {len(row["positions"]) for row in rows if row["length"] == LENGTH}
    assert counts == {round(LENGTH * MASKED_FRACTION)}


def test_held_out_sequences_have_the_same_masks_each_time(folder):
    scored = [
        list(ordered_batches(PretrainingRecords(folder, "held_out", sequence_length=LENGTH), 4, 10)) for _ in range(2)
    ]
    assert_equal(*scored)
    assert scored[0][0][0]["token_ids"].shape == (4, LENGTH)
    rows = rows_of(scored[0])
    assert len({tuple(row["positions"]) for row in rows}) > 1


def test_bag_of_words_holds_the_rest_of_the_document(folder):
    records = PretrainingRecords(folder, sequence_length=LENGTH)
    x, y, weights = next(iter(pretraining_dataset(records, 6, bag_of_words=True)))
    masks, mean = y["mlm"].shape[1], np.mean([record["context_weights"].sum() for record in records])
    assert y["words"].shape == weights["words"].shape == (6, masks + RECORD_LENGTH - 2)
    np.testing.assert_array_equal(y["words"][:, :masks], y["mlm"])
    assert (weights["words"][:, masks:].sum(axis=1) > 0).any()
    by_text = {tuple(sequence["input_ids"]): sequence for sequence in (records[n] for n in range(len(records)))}
    for row in range(6):
        sequence = by_text[tuple(x["token_ids"][row])]
        np.testing.assert_array_equal(y["words"][row, masks:], sequence["context_ids"])
        share = weights["mlm"][row].sum() / mean  # a mean context counts as much as the masked tokens
        expected = share * sequence["context_weights"] * records.label_weights[sequence["context_ids"]]
        np.testing.assert_allclose(weights["words"][row, masks:], expected, rtol=1e-6)


def test_frequencies_are_those_of_whole_records(folder):
    cut = PretrainingRecords(folder, sequence_length=20)  # whose sequences overlap
    np.testing.assert_array_equal(cut.label_weights, PretrainingRecords(folder).label_weights)


def test_resuming_is_a_slice(folder):
    records = PretrainingRecords(folder, sequence_length=LENGTH)
    rest, whole = (iter(pretraining_dataset(records, 4, 1, step, "dynamic", bag_of_words=True)) for step in (7, 0))
    for _ in range(7):
        next(whole)
    assert_equal(next(rest), next(whole))


@pytest.mark.parametrize("objective", ["mlm_nsp", "mlm_sop"])
def test_pairs_are_not_cut(tmp_path, objective):
    folder = write_objective_records(tmp_path / "records", objective, sequence_length=RECORD_LENGTH)
    with pytest.raises(ValueError, match=f"pairs cannot be cut. Received: 14, records of 38 tokens.*{objective}"):
        PretrainingRecords(folder, sequence_length=LENGTH)


@pytest.mark.parametrize("length", [0, 2])
def test_sequences_without_room_for_text_are_refused(folder, length):
    with pytest.raises(ValueError, match=rf"room for text between .* Received: {length}\."):
        PretrainingRecords(folder, sequence_length=length)


def test_records_that_do_not_say_how_they_were_masked_are_not_cut(tmp_path):
    folder = write_objective_records(tmp_path / "records", "mlm", sequence_length=RECORD_LENGTH)
    manifest = read_manifest(folder)
    config = {name: value for name, value in manifest.config.items() if name != "masked_fraction"}
    write_manifest(folder, "records", "k", config, {}, {}, manifest.files)
    with pytest.raises(ValueError, match="masked_fraction in the manifest"):
        PretrainingRecords(folder, sequence_length=LENGTH)


def test_uncut_records_are_those_of_the_folder(folder):
    records = PretrainingRecords(folder, sequence_length=LENGTH)
    assert records.mean_context > 1  # and it is kept from here on
    assert records.uncut.mean_context == 1
    assert_equal(records.uncut[3], PretrainingRecords(folder)[3])


def test_sequences_longer_than_records_are_refused(folder):
    with pytest.raises(ValueError, match="at most that of the records. Received: 40, records of 38 tokens"):
        PretrainingRecords(folder, sequence_length=40)


@pytest.mark.any_backend
@pytest.mark.parametrize("sequence_length", [None, 14])
def test_unknown_objective_is_refused_at_once(tmp_path, sequence_length):
    folder = write_objective_records(tmp_path / "records", "mlm", sequence_length=RECORD_LENGTH)
    manifest = read_manifest(folder)
    write_manifest(folder, "records", "k", manifest.config | {"objective": "electra"}, {}, {}, manifest.files)
    with pytest.raises(ValueError, match="An objective must be one of .* Received: 'electra'"):
        PretrainingRecords(folder, sequence_length=sequence_length)
