"""Shares in records are held against their ranges: labels, padding, masked and unknown tokens, repeated records."""

import shutil

import pytest

from tests.checks.doctor.examined import ROWS, examine, find, not_ok, verdicts
from tests.oracles.plain_records import CLS, MASK, SEP, UNK, make_many


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
