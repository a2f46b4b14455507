"""Every verdict on what records hold, provoked by one kind of damage at a time; every number counted again by hand."""

import json
import shutil
from collections import Counter

import pytest

from keras_bert_flow.doctor.findings import as_json
from keras_bert_flow.doctor.records import choose_sample, examine_records
from tests.doctor.examined import ROWS, examine, find, not_ok, verdicts
from tests.oracles.plain_records import (
    CLS,
    MASK,
    PIECES,
    SEP,
    UNK,
    encode,
    make_many,
    publish_plain,
)


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


@pytest.mark.parametrize("label", [0, 1])
def test_one_label_alone_is_an_error(tmp_path, label):
    diagnosis = examine(tmp_path, make_many(label=label), held_out=make_many(20, seed=9, label=label))
    assert not_ok(diagnosis) == {"random next": "error"}


@pytest.mark.parametrize(("random", "expected"), [(0.25, "warning"), (0.5, "ok"), (0.6, "ok"), (0.9, "warning")])
def test_share_of_random_next_is_held_against_its_range(tmp_path, random, expected):
    rows = [row | {"next_sentence_labels": [int(number < 400 * random)]} for number, row in enumerate(ROWS)]
    diagnosis = examine(tmp_path, rows)
    finding = find(diagnosis, "random next")
    assert finding.verdict == expected
    assert (finding.remedy == "") == (expected == "ok")
    if random == 0.25:
        assert "blank lines" in finding.remedy
    if random == 0.9:
        assert "longer documents" in finding.remedy


@pytest.mark.parametrize(("swapped", "expected"), [(0.3, "error"), (0.5, "ok"), (0.7, "error")])
def test_sentence_order_is_swapped_in_half(tmp_path, swapped, expected):
    rows = [row | {"next_sentence_labels": [int(number < 400 * swapped)]} for number, row in enumerate(ROWS)]
    diagnosis = examine(tmp_path, rows, objective="mlm_sop")
    assert verdicts(diagnosis)["swapped"] == expected
    assert "random next" not in verdicts(diagnosis)


def test_sequences_without_pairs_have_no_labels_to_judge(tmp_path):
    settings = {"pair": False, "label": 0, "lengths": (20, 10)}
    rows, held_out = make_many(**settings), make_many(20, seed=9, **settings)
    diagnosis = examine(tmp_path, rows, held_out=held_out, objective="mlm")
    assert not_ok(diagnosis) == {}
    assert not {"random next", "swapped"} & set(verdicts(diagnosis))
    shutil.rmtree(tmp_path / "records")
    assert not_ok(examine(tmp_path, rows, held_out=held_out)) == {  # as pairs they would be wrong
        "special tokens": "error",
        "segments": "error",
        "random next": "error",
    }


def test_padding_of_packed_sequences_is_a_warning(tmp_path):
    settings = {"pair": False, "label": 0, "lengths": (14, 10)}
    diagnosis = examine(tmp_path, make_many(**settings), held_out=make_many(20, **settings), objective="mlm")
    assert verdicts(diagnosis)["padding share"] == "warning"


def test_padding_of_more_than_half_is_a_warning(tmp_path):
    diagnosis = examine(tmp_path, make_many(lengths=(4, 5)), held_out=make_many(20, seed=9, lengths=(4, 5)))
    assert not_ok(diagnosis) == {"padding share": "warning"}


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        ({"hidden": 1.0, "kept": 0.0}, {"hidden", "kept", "replaced"}),
        ({"hidden": 0.8, "kept": 0.2}, {"kept", "replaced"}),
        ({"hidden": 0.6, "kept": 0.1}, {"hidden", "replaced"}),
    ],
)
def test_split_of_masked_tokens_is_held_against_its_range(tmp_path, split, expected):
    diagnosis = examine(tmp_path, make_many(1000, **split))
    assert not_ok(diagnosis) == dict.fromkeys(expected, "error")


def test_tokens_replaced_together_are_not_held_for_many_draws(tmp_path):
    """All tokens of a record share one draw: the split deviates more, and only a mask unit of several explains it."""
    rows = []
    for number, row in enumerate(make_many(200, lengths=(14, 14), hidden=0.0, kept=1.0, seed=4)):
        tokens, kind = list(row["input_ids"]), number % 100
        originals = tokens[3:8]
        tokens[3:8] = [MASK] * 5 if kind < 87 else originals if kind < 97 else [20 + kind] * 5
        rows.append(
            row
            | {"input_ids": tokens, "masked_lm_positions": list(range(3, 8)), "masked_lm_ids": originals}
            | {"masked_lm_weights": [1.0] * 5}
        )
    held_out = make_many(0)
    by_span = examine(tmp_path / "span", rows, held_out=held_out, mask_unit="span")
    by_token = examine(tmp_path / "token", rows, held_out=held_out)
    assert verdicts(by_span)["hidden"] == "ok"
    assert verdicts(by_token)["hidden"] == "error"


@pytest.mark.parametrize(
    ("predictions", "unit", "expected"),
    [
        (None, "token", "ok"),
        (3, "token", "error"),
        (5, "token", "error"),
        (4, "word", "ok"),
        (3, "word", "warning"),
        (5, "word", "error"),
        (3, "span", "warning"),
    ],
)
def test_number_of_masked_tokens_is_held_against_the_rule(tmp_path, predictions, unit, expected):
    settings = {"lengths": (11, 14), "predictions": predictions}  # 28 tokens, 15 % of them are 4.2
    diagnosis = examine(tmp_path, make_many(**settings), held_out=make_many(20, **settings), mask_unit=unit)
    assert verdicts(diagnosis)["masked tokens"] == expected


def test_whole_words_of_older_manifests_may_be_fewer(tmp_path):
    settings = {"lengths": (14, 14), "predictions": 4}  # of 5
    diagnosis = examine(tmp_path, make_many(**settings), held_out=[], whole_word=True)
    assert (verdicts(diagnosis)["masked tokens"], diagnosis.numbers["mask_unit"]) == ("ok", "word")


@pytest.mark.parametrize(("unknown", "expected"), [(0, "ok"), (3, "warning"), (30, "error")])
def test_unknown_tokens_are_counted_beneath_their_masks(tmp_path, unknown, expected):
    rows = []
    for row in make_many(100):
        ids = list(row["input_ids"])
        if len(rows) < unknown:  # every word of the record
            length = sum(row["input_mask"])
            ids = [UNK if place < length and token not in (CLS, SEP) else token for place, token in enumerate(ids)]
            row = row | {
                "input_ids": ids,
                "masked_lm_ids": [UNK if weight else 0 for weight in row["masked_lm_weights"]],
            }
        rows.append(row)
    diagnosis = examine(tmp_path, rows, held_out=make_many(5, seed=8))
    assert verdicts(diagnosis)["unknown tokens"] == expected
    words = sum(sum(row["input_mask"]) - 3 for row in rows[:unknown])
    assert diagnosis.numbers["unknown_tokens"] == words


@pytest.mark.parametrize(("copies", "expected"), [(3, "ok"), (20, "warning"), (1000, "error")])
def test_repeated_records_are_seen(tmp_path, copies, expected):
    diagnosis = examine(tmp_path, ROWS + [ROWS[0]] * copies)
    assert verdicts(diagnosis)["repeated records"] == expected


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
    chosen = choose_sample(total, sample).tolist()
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
    from keras_bert_flow.doctor.layout import make_layout
    from keras_bert_flow.doctor.record_counts import RecordCounts
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
