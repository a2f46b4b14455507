"""Classes whose shares in two files differ by more than chance explains are named."""

import numpy as np
import pytest

from keras_bert_flow.tasks.core.metrics import describe_shares


def draw(rng, shares, rows):
    return list(rng.choice([*"abc"], rows, p=shares))


@pytest.mark.parametrize("rows", [10, 100, 5000])
def test_files_of_one_mix_are_not_told_apart(rows):
    rng = np.random.default_rng(rows)
    for _ in range(200):
        training, others = (draw(rng, (0.6, 0.3, 0.1), count) for count in (rows, max(5, rows // 10)))
        assert describe_shares("dev", training, others) == ""


def test_another_mix_is_told_with_the_largest_differences_first():
    training, others = ["a"] * 800 + ["b"] * 190 + ["c"] * 10, ["a"] * 300 + ["b"] * 640 + ["c"] * 60
    assert describe_shares("dev", training, others) == (
        "dev: the shares of classes are not those of the training file: 'a' 30 % for 80 %, 'b' 64 % for 19 % there. "
        "Scores on it are of another mix of classes."
    )
    assert "'c' 6 %" not in describe_shares("dev", training, others)  # five points, but not more


def test_files_without_labels_say_nothing():
    assert (
        describe_shares("dev", [], []) == describe_shares("dev", ["a"], []) == describe_shares("dev", [], ["a"]) == ""
    )
