"""How rejected text is described: by reason, in bytes, with the files that hold most of it."""

import pytest

from keras_bert_flow.text.corpus.lines import (
    advise,
    check_rejected,
    describe_rejected,
    explain_lack,
    rejected_bytes,
    rejected_share,
)

COUNTERS = {
    "bytes_read": 2_000,
    "bytes_used": 1_940,
    "lines_rejected_too_long": 1,
    "bytes_rejected_too_long": 50,
    "lines_rejected_not_utf8": 5,
    "bytes_rejected_not_utf8": 10,
    "lines_rejected_null": 2,
}


def test_share_and_bytes_are_of_what_was_read():
    assert rejected_share(COUNTERS) == 0.03
    assert rejected_bytes(COUNTERS) == {"not_utf8": 10, "too_long": 50, "null": 0}
    assert rejected_share({}) == rejected_share({"bytes_read": 0, "files_rejected_unreadable": 1}) == 0.0


def test_description_names_the_files_with_most_bytes_first():
    files = [("not_utf8", name, size) for name, size in [("a", 1), ("c", 3), ("b", 3), ("d", 2), ("e", 1)]]
    assert describe_rejected(COUNTERS, [*files, ("too_long", "z", 50)]) == (
        "60 of 2,000 bytes (3.00 %) rejected: 10 bytes in 5 lines not UTF-8 (b, c, d and 2 more files); "
        "50 bytes in 1 line longer than corpus.max_line_bytes (z); 0 bytes in 2 rows without a value"
    )
    assert describe_rejected({"bytes_read": 10}) == ""


def test_advice_begins_with_what_costs_most():
    assert advise(COUNTERS).startswith("Break long lines into paragraphs")


@pytest.mark.parametrize(("max_share", "is_refused"), [(0.0, True), (0.029, True), (0.03, False), (1.0, False)])
def test_more_than_the_share_is_refused(max_share, is_refused):
    if is_refused:
        with pytest.raises(
            ValueError, match=r"At most (0|2\.9) % .*Received: 60 of 2,000 .*--max-rejected-share"
        ) as error:
            check_rejected(COUNTERS, max_share)
        assert "\n" not in str(error.value)
    else:
        check_rejected(COUNTERS, max_share)


@pytest.mark.parametrize(
    ("counters", "fact", "remedy"),
    [
        ({}, "all of it empty", "Check the input."),
        ({"bytes_read": 9, "lines_read": 2, "lines_used": 2}, "", "Put blank lines between documents."),
        ({"bytes_read": 9, "lines_read": 2, "lines_blank": 2}, "blank lines only", "Check the input."),
        ({"bytes_read": 9, "duplicate_documents": 3}, "3 copies of others", "Give more different documents."),
        (COUNTERS, describe_rejected(COUNTERS), advise(COUNTERS)),
        (
            {"bytes_read": 0, "files_rejected_damaged": 2},
            "0 of 0 bytes (0.00 %) rejected: 0 bytes in 2 files that cannot be read to the end",
            "Restore the files.",
        ),
    ],
)
def test_lack_of_text_has_its_cause(counters, fact, remedy):
    assert explain_lack({"lines_read": 5} | counters) == (fact, remedy)
