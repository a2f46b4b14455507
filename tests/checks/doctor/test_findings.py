import json
from dataclasses import replace

from keras_bert_flow.checks.findings import Diagnosis, Finding, as_json, as_text, draw_histogram, grade, judge, percent

FINDINGS = (
    judge("lines", True, "10", "never shown"),
    judge("documents", "warning", "1", "Give more."),
    judge("ids", False, "9 are wrong", "Build them again."),
)
DIAGNOSIS = Diagnosis("a b.txt", "corpus", FINDINGS, {"words": 3, "lengths": [[1, 1, 4], [2, 4, 1]]}, {"lengths": "L"})


def test_judge_gives_a_remedy_where_it_is_needed():
    assert FINDINGS[0] == Finding("ok", "lines", "10", "")
    assert FINDINGS[1] == Finding("warning", "documents", "1", "Give more.")
    assert FINDINGS[2] == Finding("error", "ids", "9 are wrong", "Build them again.")


def test_verdict_of_all_is_the_worst():
    for number, verdict in enumerate(("ok", "warning", "error"), start=1):
        assert Diagnosis("", "corpus", FINDINGS[:number], {}, {}).verdict == verdict
    assert Diagnosis("", "corpus", FINDINGS[::-1], {}, {}).verdict == "error"


def test_grade_takes_more_as_worse():
    assert [grade(number, 0.1, 0.5) for number in (0, 0.1, 0.11, 0.5, 0.51)] == ["ok", "ok", *["warning"] * 2, "error"]
    assert grade(1e9, 1) == "warning"


def test_percent_never_hides_a_small_share():
    assert [percent(value) for value in (0, 1, 0.1234567, 0.0001, 0.000012)] == [
        "0.00 %",
        "100.00 %",
        "12.35 %",
        "0.01 %",
        "under 0.01 %",
    ]


def test_text_has_a_line_for_each_verdict():
    assert as_text(DIAGNOSIS).splitlines() == [
        "corpus: a b.txt",
        "",
        "ok       lines      10",
        "warning  documents  1",
        "                    -> Give more.",
        "error    ids        9 are wrong",
        "                    -> Build them again.",
        "",
        "L",
        "                     1             4  " + "#" * 40,
        "                2 to 4             1  " + "#" * 10,
        "",
        "1 ok, 1 warning, 1 error",
    ]


def test_json_has_the_same_findings_and_the_numbers():
    values = json.loads(as_json(DIAGNOSIS))
    assert list(values) == ["path", "kind", "verdict", "findings", "numbers"]
    assert (values["path"], values["kind"], values["verdict"]) == ("a b.txt", "corpus", "error")
    assert values["findings"][1] == {"verdict": "warning", "what": "documents", "value": "1", "remedy": "Give more."}
    assert [finding["what"] for finding in values["findings"]] == ["lines", "documents", "ids"]
    assert values["numbers"] == DIAGNOSIS.numbers


def test_histogram_of_nothing():
    assert draw_histogram([]) == ["  nothing"]
    assert draw_histogram([[1, 1, 0]]) == ["                     1             0"]


def test_finding_is_a_line_whatever_its_files_are_called():
    named = replace(DIAGNOSIS, path="two\nlines", findings=(Finding("ok", "files", "1 file: \x1b]0;pwned\x07\n"),))
    lines = as_text(named).splitlines()
    assert lines[0].endswith(": two\\nlines") and lines[2].endswith("1 file: \\x1b]0;pwned\\x07\\n")
