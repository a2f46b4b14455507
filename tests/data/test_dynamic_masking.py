"""Masks drawn at load time: a function of (seed, epoch, index), by the rule of the records, which stay as they are."""

from itertools import islice

import keras
import numpy as np
import pytest
from scipy import stats

from keras_bert_flow.data.order import restore_tokens
from keras_bert_flow.data.pretraining import pretraining_dataset
from keras_bert_flow.data.pretraining_records import PretrainingRecords
from keras_bert_flow.results.manifest import read_manifest, write_manifest
from tests.oracles.objective_records import CLS, MASK, MASKED_FRACTION, MAX_PREDICTIONS, SEP, write_objective_records

pytestmark = pytest.mark.any_backend

OBJECTIVES = ("mlm_nsp", "mlm", "mlm_sop", "mlm_sbo")


@pytest.fixture(scope="module", params=OBJECTIVES)
def folder(request, tmp_path_factory):
    return write_objective_records(tmp_path_factory.mktemp("dynamic") / "records", request.param)


def rows_of(batches):
    """Return one dict a record: its tokens unhidden, its input, and its predictions."""
    rows = []
    for x, y, weights in batches:
        for row in range(len(x["token_ids"])):
            real = weights["mlm"][row] > 0
            positions, labels = x["mask_positions"][row][real], y["mlm"][row][real]
            original = x["token_ids"][row].copy()
            original[positions] = labels
            rows.append(
                {
                    "original": original,
                    "input": x["token_ids"][row],
                    "positions": positions,
                    "labels": labels,
                    "length": int(x["padding_mask"][row].sum()),
                    "filler": [x["mask_positions"][row][~real], y["mlm"][row][~real]],
                }
            )
    return rows


def take(records, count, masking="dynamic", seed=3, start_step=0):
    return list(islice(pretraining_dataset(records, 4, seed, start_step, masking), count))


def assert_equal(ours, theirs):
    keras.tree.map_structure(np.testing.assert_array_equal, ours, theirs)


def test_dynamic_masks_hide_the_same_text_in_the_same_order(folder):
    records = PretrainingRecords(folder)
    steps = len(records) // 2
    dynamic, static = rows_of(take(records, steps)), rows_of(take(records, steps, "static"))
    assert len(dynamic) > len(records)  # more than an epoch
    for ours, theirs in zip(dynamic, static, strict=True):
        np.testing.assert_array_equal(ours["original"], theirs["original"])
    differing = sum(
        ours["input"].tobytes() != theirs["input"].tobytes() for ours, theirs in zip(dynamic, static, strict=True)
    )
    assert differing > 0.8 * len(dynamic)  # short texts can come out alike


@pytest.mark.slow
@pytest.mark.first_form
def test_dynamic_masks_follow_the_rule_of_the_records(folder):
    records, counts = PretrainingRecords(folder), np.zeros(3)
    for row in rows_of(take(records, 600)):
        number = len(row["positions"])
        assert number == min(MAX_PREDICTIONS, max(1, round(row["length"] * MASKED_FRACTION)))
        assert np.all(np.diff(row["positions"]) > 0) and row["positions"][-1] < row["length"]
        assert not np.isin(row["labels"], (CLS, SEP)).any()
        assert not any(filler.any() for filler in row["filler"])
        replaced = row["input"][row["positions"]]
        kept = replaced == row["labels"]
        counts += [np.sum(replaced == MASK), kept.sum(), np.sum(~kept & (replaced != MASK))]
    # A random token of 40 is the original or [MASK] in 2 of 40 draws.
    expected = np.array([0.8 + 0.1 / 40, 0.1 + 0.1 / 40, 0.1 * 38 / 40])
    assert stats.chisquare(counts, counts.sum() * expected).pvalue > 0.001


@pytest.mark.first_form
def test_dynamic_masks_may_have_another_share(folder):
    records = PretrainingRecords(folder)
    batches = list(islice(pretraining_dataset(records, 4, 3, masking="dynamic", masked_fraction=0.4), 100))
    plain = take(records, 100)
    most = round(0.4 * records.sequence_length)
    assert {batch[1]["mlm"].shape for batch in batches} == {(4, most)}
    for row, other in zip(rows_of(batches), rows_of(plain), strict=True):
        np.testing.assert_array_equal(row["original"], other["original"])
        assert len(row["positions"]) == min(most, max(1, round(row["length"] * 0.4)))
        assert not np.isin(row["labels"], (CLS, SEP)).any()


@pytest.mark.first_form
@pytest.mark.parametrize(("first", "last"), [(0.1, 0.4), (0.4, 0.1)])
def test_share_changes_with_the_steps_and_stays_at_its_end(folder, first, last):
    records, steps, batch_size = PretrainingRecords(folder), 10, 4

    def take_changing(start_step=0):
        batches = pretraining_dataset(
            records, batch_size, 3, start_step, "dynamic", masked_fraction=first, masked_fraction_end=(last, steps)
        )
        return list(islice(batches, 2 * steps - start_step))

    batches = take_changing()
    most = round(0.4 * records.sequence_length)
    assert {batch[1]["mlm"].shape for batch in batches} == {(batch_size, most)}
    for place, row in enumerate(rows_of(batches)):
        done = min(1.0, place / (steps * batch_size))
        share = (1 - done) * first + done * last  # to the last bit, as halves are rounded
        assert len(row["positions"]) == max(1, round(row["length"] * share))
    assert_equal(batches[7:], take_changing(7))  # as a resumed run takes them


@pytest.mark.first_form
def test_each_sequence_draws_its_share_and_weighs_as_its_length(folder):
    records, least, most = PretrainingRecords(folder), 0.2, 0.8

    def take_diffused(start_step=0):
        limits = {"masked_fraction": most, "masked_fraction_least": least}
        return list(islice(pretraining_dataset(records, 4, 3, start_step, "dynamic", **limits), 100 - start_step))

    batches = take_diffused()
    plain, shares = rows_of(take(records, 100)), []
    weights = np.concatenate([batch[2]["mlm"] for batch in batches])
    assert weights.shape == (400, round(most * records.sequence_length)) and weights.dtype == np.float32
    for row, other, weight in zip(rows_of(batches), plain, weights, strict=True):
        np.testing.assert_array_equal(row["original"], other["original"])
        count, length = len(row["positions"]), row["length"]
        assert round(least * length) <= count <= round(most * length)
        assert np.all(row["input"][row["positions"]] == MASK) and not np.isin(row["labels"], (CLS, SEP)).any()
        expected = np.zeros(len(weight))
        expected[:count] = length / count  # 1 / t: the mean of the loss of masked tokens, times the length
        np.testing.assert_allclose(weight, expected, rtol=1e-6)
        shares.append(count / length)
    # Uniform shares, up to special tokens and rounding.
    assert stats.kstest(shares, stats.uniform(least, most - least).cdf).statistic < 0.15
    assert_equal(batches[7:], take_diffused(7))  # as a resumed run takes them
    first, second = (rows_of(batches)[place::400] for place in (0, len(records)))
    assert first[0]["positions"].tobytes() != second[0]["positions"].tobytes()


@pytest.mark.slow
@pytest.mark.first_form
def test_dynamic_masks_differ_between_epochs_and_records(folder):
    records = PretrainingRecords(folder)
    size = len(records)
    rows = rows_of(take(records, 3 * size))  # 12 epochs
    places = {}
    for number, row in enumerate(rows):
        places.setdefault(row["original"].tobytes(), []).append((number // size, row["positions"].tobytes()))
    twelve = [dict(found) for found in places.values() if len(found) == 12]
    distinct = [len(set(found.values())) for found in twelve]
    assert np.mean(distinct) > 6  # of 12; a few positions among 16 come again by chance
    epochs = [[row["positions"].tobytes() for row in rows[start : start + size]] for start in (0, size)]
    assert epochs[0] != epochs[1]


@pytest.mark.first_form
def test_dynamic_masks_are_equal_after_resume(folder):
    records = PretrainingRecords(folder)
    steps = len(records)  # four epochs
    whole = take(records, steps)
    for start in (1, 7, steps // 4, steps - 2):
        assert_equal(whole[start:], take(PretrainingRecords(folder), steps - start, start_step=start))


def test_dynamic_masks_of_another_seed_differ(folder):
    records = PretrainingRecords(folder)
    masks = []
    for seed in (3, 4):
        rows = rows_of(take(records, len(records) // 4, seed=seed))
        masks.append({(row["original"].tobytes(), row["positions"].tobytes()) for row in rows})
    assert len(masks[0] & masks[1]) < 0.5 * len(masks[0])


@pytest.mark.parametrize("mask_unit", ["word", "span"])
def test_dynamic_masks_keep_the_unit_of_the_records(tmp_path, mask_unit):
    folder = write_objective_records(tmp_path / "records", "mlm", mask_unit)
    whole = 0
    for row in rows_of(take(PretrainingRecords(folder), 100)):
        chosen = set(row["positions"].tolist())
        starts = [place for place in range(row["length"]) if row["original"][place] < 30]
        words = [set(range(a, b)) for a, b in zip(starts, [*starts[1:], row["length"]], strict=True)]
        words = [word for word in words if not {int(row["original"][place]) for place in word} & {CLS, SEP}]
        fits = min(map(len, words), default=0) <= MAX_PREDICTIONS and any(word <= chosen for word in words)
        assert not fits or all(word <= chosen or word.isdisjoint(chosen) for word in words)
        whole += fits
    assert whole > 200  # of 400; else no word fits, and the first pieces of one are hidden


def test_tokens_are_restored(folder):
    records = PretrainingRecords(folder)
    for index in range(len(records)):
        record = records[index]
        token_ids, length = restore_tokens(record), int(record["input_mask"].sum())
        assert len(token_ids) == len(record["input_ids"]) and MASK not in token_ids
        assert token_ids[0] == CLS and token_ids[length - 1] == SEP and not token_ids[length:].any()


def test_dynamic_masking_names_what_the_manifest_lacks(tmp_path):
    folder = write_objective_records(tmp_path / "records")
    manifest = read_manifest(folder)
    config = {name: value for name, value in manifest.config.items() if name != "masked_fraction"}
    write_manifest(folder, "records", "k", config, {}, {}, manifest.files)
    with pytest.raises(ValueError, match="needs masked_fraction in the manifest. Received: .*records, without"):
        pretraining_dataset(folder, 4, masking="dynamic")


def test_masking_of_another_name_is_refused(folder):
    with pytest.raises(ValueError, match="must be one of static, dynamic. Received: masking='often'"):
        pretraining_dataset(folder, 4, masking="often")
