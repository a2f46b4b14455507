"""Records of wrong form are errors, provoked by one kind of damage at a time; every number is counted again by hand."""

import json
from collections import Counter

import pytest

from keras_bert_flow.checks.diagnose import examine_records, walk_sample
from keras_bert_flow.checks.findings import as_json
from tests.checks.doctor.examined import ROWS, examine, find, not_ok, verdicts
from tests.oracles.plain_records import CLS, MASK, PIECES, SEP, encode, make_many, publish_plain


def changed(number: int, **features) -> list[dict]:
    """Return the rows with some features of one of them replaced; a function gets the old value."""
    row = dict(ROWS[number])
    for name, value in features.items():
        row[name] = value(list(row[name])) if callable(value) else value
    return [*ROWS[:number], row, *ROWS[number + 1 :]]


def with_item(position: int, value):
    def put(values: list) -> list:
        values[position] = value
        return values

    return put


def test_records_by_the_rules_are_all_ok(tmp_path):
    diagnosis = examine(tmp_path, ROWS)
    assert not_ok(diagnosis) == {}
    assert all(finding.remedy == "" for finding in diagnosis.findings)
    assert len(diagnosis.findings) == 22


def test_numbers_agree_with_a_count_by_hand(tmp_path):
    rows = [*ROWS, ROWS[3], ROWS[3]]
    held_out = make_many(20, seed=99)
    numbers = examine(tmp_path, rows, held_out=held_out).numbers
    counts = Counter()
    for row in [*rows, *held_out]:
        tokens = row["input_ids"][: sum(row["input_mask"])]
        counts["tokens"] += len(tokens)
        counts["labels"] += row["next_sentence_labels"][0]
        for place, original in zip(row["masked_lm_positions"], row["masked_lm_ids"], strict=True):
            if place:  # filler is 0, and [CLS] is never predicted
                kind = "hidden" if tokens[place] == MASK else "kept" if tokens[place] == original else "replaced"
                counts[kind] += 1
    assert numbers["records"] == numbers["records_read"] == 422
    assert (numbers["records_train"], numbers["records_held_out"], numbers["files"]) == (402, 20, 3)
    assert numbers["tokens"] == counts["tokens"]
    assert numbers["padding_share"] == pytest.approx(1 - counts["tokens"] / (422 * 32))
    assert numbers["positive_labels"] == counts["labels"]
    assert [numbers[f"{kind}_tokens"] for kind in ("hidden", "kept", "replaced")] == [
        counts["hidden"],
        counts["kept"],
        counts["replaced"],
    ]
    assert (
        numbers["masked_tokens"]
        == numbers["masked_tokens_wanted"]
        == sum(counts[k] for k in ("hidden", "kept", "replaced"))
    )
    assert numbers["repeated_record_share"] == pytest.approx(2 / 422)
    lengths = Counter(sum(row["input_mask"]) for row in [*rows, *held_out])
    for low, high, count in numbers["tokens_per_record"]:
        assert count == sum(lengths[length] for length in range(low, high + 1))
    assert numbers["records_faulty"] == dict.fromkeys(numbers["records_faulty"], 0)


def test_json_is_the_same_every_time(tmp_path):
    folder = publish_plain(tmp_path / "records", ROWS)
    first, second = as_json(examine_records(folder)), as_json(examine_records(folder))
    assert first == second
    assert json.loads(first)["numbers"]["records"] == 420


LENGTH_OF_5 = sum(ROWS[5]["input_mask"])
FIRST_SEP_OF_5 = ROWS[5]["segment_ids"].index(1) - 1
SHOWN_OF_5 = min(set(range(2, FIRST_SEP_OF_5)) - set(ROWS[5]["masked_lm_positions"]))
FORM = {
    "decoding": [
        {"masked_lm_ids": [0.5] * 5},
        {"masked_lm_weights": [], "input_ids": []},
    ],
    "shapes": [
        {"input_ids": lambda ids: [*ids, 0]},
        {"masked_lm_positions": lambda places: places[:-1]},
        {"next_sentence_labels": [0, 1]},
    ],
    "ids": [
        {"input_ids": with_item(2, 200)},
        {"input_ids": with_item(2, -1)},
        {"masked_lm_ids": with_item(0, 200)},
    ],
    "padding": [
        {"input_mask": with_item(3, 0)},
        {"input_ids": with_item(31, 20)},
    ],
    "special tokens": [
        {"input_ids": with_item(0, 20)},
        {"input_ids": with_item(LENGTH_OF_5 - 1, 20)},
        {"input_ids": with_item(FIRST_SEP_OF_5, 20)},
        {"input_ids": with_item(SHOWN_OF_5, CLS)},
        {"input_ids": with_item(SHOWN_OF_5, SEP)},
    ],
    "segments": [
        {"segment_ids": with_item(1, 1)},
        {"segment_ids": with_item(LENGTH_OF_5 - 1, 0)},
        {"segment_ids": with_item(FIRST_SEP_OF_5, 1)},
        {"segment_ids": with_item(31, 1)},
        {"segment_ids": [0] * 32},
    ],
    "predictions": [
        {"masked_lm_positions": with_item(0, 0)},
        {"masked_lm_positions": with_item(0, 31)},
        {"masked_lm_positions": with_item(0, 99)},
        {"masked_lm_positions": with_item(0, LENGTH_OF_5 - 1)},
        {"masked_lm_positions": lambda places: [places[1], places[0], *places[2:]]},
        {"masked_lm_weights": with_item(0, 0.0)},
        {"masked_lm_weights": [0.0] * 5},
        {"masked_lm_positions": with_item(4, 7)},
        {"masked_lm_ids": with_item(4, 7)},
        {"masked_lm_ids": with_item(0, SEP)},
    ],
    "labels": [{"next_sentence_labels": [2]}, {"next_sentence_labels": [-1]}],
}


@pytest.mark.parametrize(
    ("fault", "features"), [(fault, features) for fault, cases in FORM.items() for features in cases]
)
def test_record_of_wrong_form_is_an_error_and_named(tmp_path, fault, features):
    assert sum(ROWS[5]["masked_lm_weights"]) < 5  # so that its last place is filler
    rows = changed(5, **features)
    if fault == "decoding":
        rows[5] = (
            {name: value for name, value in rows[5].items() if value} if [] in features.values() else b"no example"
        )
    diagnosis = examine(tmp_path, rows)
    finding = find(diagnosis, fault)
    assert (finding.verdict, diagnosis.verdict) == ("error", "error")
    assert finding.value == "1 of 420 records are wrong, first record 5 of train-00000-of-00002.tfrecord"
    assert diagnosis.numbers["records_faulty"][fault] == 1


def test_mask_that_hides_a_mask_is_counted_once(tmp_path):
    """A text may hold [MASK] where it was tokenized by a program that knows the word."""
    place = ROWS[5]["masked_lm_positions"][0]
    rows = changed(5, input_ids=with_item(place, MASK), masked_lm_ids=with_item(0, MASK))
    numbers = examine(tmp_path, rows).numbers
    assert numbers["masked_tokens"] == sum(numbers[f"{kind}_tokens"] for kind in ("hidden", "kept", "replaced"))


def test_ids_out_of_range_are_counted(tmp_path):
    rows = changed(5, input_ids=lambda ids: [ids[0], 200, -3, *ids[3:]], masked_lm_ids=with_item(0, 500))
    assert examine(tmp_path, rows).numbers["ids_out_of_range"] == 3


def test_counters_of_the_job_are_compared(tmp_path):
    held_out = make_many(20, seed=99)
    everything = [*ROWS, *held_out]
    counters = {
        "masked_tokens": int(sum(sum(row["masked_lm_weights"]) for row in everything)),
        "instance_tokens": sum(sum(row["input_mask"]) for row in everything),
        "random_next": sum(row["next_sentence_labels"][0] for row in everything),
        "documents": 7,
    }
    right = examine(tmp_path / "right", ROWS, held_out=held_out, counters=counters)
    assert not_ok(right) == {} and verdicts(right)["counters"] == "ok"
    for name in ("masked_tokens", "instance_tokens", "random_next"):
        wrong = examine(tmp_path / name, ROWS, held_out=held_out, counters=counters | {name: 5})
        assert not_ok(wrong) == {"counters": "error"}
        assert name in find(wrong, "counters").value
    for objective, name in (("mlm_nsp", "random_next"), ("mlm_sop", "swapped")):
        folder = tmp_path / objective
        counters = {name: 1, "swapped" if name == "random_next" else "random_next": 2}
        finding = find(examine(folder, ROWS, counters=counters, objective=objective), "counters")
        assert name in finding.value and "not 1" in finding.value and "not 2" not in finding.value
    sampled = examine_records(tmp_path / "right" / "records", sample=100)
    assert "counters" not in verdicts(sampled)  # only a part was counted


@pytest.mark.parametrize(("total", "sample"), [(10, 3), (10, 10), (10, 99), (1000, 7), (1, 1), (0, 5)])
def test_sample_is_spread_evenly(total, sample):
    chosen = [position for _, position in walk_sample([range(total)], sample)]
    assert len(set(chosen)) == len(chosen) == min(total, sample)
    assert chosen == sorted(chosen)
    gaps = {after - before for before, after in zip(chosen, chosen[1:], strict=False)}
    assert not gaps or max(gaps) - min(gaps) <= 1
    assert all(0 <= number < total for number in chosen)


def test_sample_is_said(tmp_path):
    folder = publish_plain(tmp_path / "records", ROWS)
    diagnosis = examine_records(folder, sample=42)
    assert find(diagnosis, "checksums").value == "42 of 420 read, evenly spread"
    assert (diagnosis.numbers["records_read"], diagnosis.numbers["records"]) == (42, 420)
    assert find(examine_records(folder), "checksums").value == "all 420 read"


def test_records_are_counted_alike_in_batches_of_any_size():
    from keras_bert_flow.checks.record_counts import RecordCounts, make_layout
    from tests.oracles.plain_records import CONFIG

    found = []
    for rows in (1, 7, 1000):
        counts = RecordCounts(make_layout(CONFIG, PIECES), rows)
        for number, row in enumerate(ROWS[:50]):
            counts.add(encode(row), str(number))
        counts.flush()
        found.append((counts.totals, counts.lengths.tolist(), counts.faults))
    assert found[0] == found[1] == found[2]
    assert found[0][0]["counted"] == 50


def test_unknown_objective_is_said_and_nothing_is_counted(tmp_path):
    finding = find(examine(tmp_path, ROWS, objective="electra"), "vocabulary")
    assert finding.verdict == "error" and "Received: 'electra'" in finding.value
