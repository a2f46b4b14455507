"""The spans of steps that were made with other settings."""

import pytest

from keras_bert_flow.training.loop.identity import add_change, list_earlier, list_spans

NAMES = ("total", "often")


def test_history_of_an_unchanged_run_is_empty():
    now = {"total": 24, "often": 8}
    assert add_change([], 7, now, dict(now)) == []
    assert list_spans([], now, NAMES, 24) == [[24, now]]
    assert list_earlier([], now, NAMES, 24) == []


def test_change_before_the_first_step_is_none():
    assert add_change([], 0, {"total": 24}, {"total": 30}) == []


def test_changes_there_and_back_are_remembered():
    first, second = {"total": 24, "often": 8}, {"total": 30, "often": 8}
    history = add_change(add_change([], 7, first, second), 14, second, first)
    assert history == [[7, first], [14, second]]
    assert list_spans(history, first, ("total",), 24) == [[7, {"total": 24}], [14, {"total": 30}], [24, {"total": 24}]]
    assert list_earlier(history, first, ("total",), 24) == [[7, {"total": 24}], [14, {"total": 30}]]
    assert list_spans(history, first, ("total",), 10) == [[7, {"total": 24}], [10, {"total": 30}]]
    assert list_spans(history, first, ("total",), 7) == [[7, {"total": 24}]]
    assert list_spans(history, first, ("often",), 24) == [[24, {"often": 8}]]
    assert list_earlier(history, first, ("often",), 24) == []


@pytest.mark.parametrize(("last", "wanted"), [(14, [[14, {"total": 24}]]), (15, [[14, {"total": 24}]])])
def test_run_that_ends_where_it_was_changed_remembers_it(last, wanted):
    """No step was made with the settings of now, which say other weights."""
    history = add_change([], 14, {"total": 24}, {"total": last})
    assert list_earlier(history, {"total": last}, ("total",), last) == wanted
