"""Rows of dev that are rows of train are counted for every kind of task, whatever their case, blanks and labels."""

from dataclasses import replace

import pytest

from keras_bert_flow.tasks.core.texts import Repeats, TextExample, count_repeats, identify
from tests.tasks.kinds import CASES, make_case

pytestmark = pytest.mark.any_backend


@pytest.mark.parametrize("name", CASES)
def test_rows_of_training_are_found_in_every_kind(name):
    case = make_case(name, 12)
    assert count_repeats(case.training, case.training) == Repeats(12, 12, 0)
    fresh = [example for example in case.dev if identify(example) not in {*map(identify, case.training)}]
    assert count_repeats(case.training, [*fresh, case.training[3]]) == Repeats(len(fresh) + 1, 1, 0)


def test_texts_are_compared_without_case_blanks_and_form():
    training = [TextExample("A caf\u00e9  is", "b", "yes"), TextExample("c", None, ("x", "y"))]
    dev = [
        TextExample(" a cafe\u0301\tIS", "B", "yes"),
        TextExample("a caf\u00e9 is", "b", "no"),
        TextExample("a caf\u00e9", "is b", "yes"),  # where one text ends counts
        TextExample("C", None, ("y", "x")),
    ]
    found = count_repeats(training, dev)
    assert found == Repeats(4, same_label=2, other_label=1)
    line = found.describe("dev")
    assert line.startswith("dev: 3 of 4 rows have the texts of a training row, 2 with the label") and "\n" not in line
    assert count_repeats(training, [replace(dev[2])]).describe("dev") == ""
