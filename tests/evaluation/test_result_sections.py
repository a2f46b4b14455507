import pytest

from keras_bert_flow.evaluation.report import MAX_CLASSES, MAX_TEXT, Report, render_report
from keras_bert_flow.evaluation.results import worst_errors
from keras_bert_flow.evaluation.summary import remarks_markdown
from tests.evaluation.test_report import Page, full_report, replace
from tests.evaluation.test_results import results_of, results_of_kind
from tests.tasks.kinds import CASES, make_case


def test_report_says_the_interval():
    page = Page(render_report(Report("t", results_of([[0, 1, 2, 1]], times=2))))
    assert "between 49.7% and 100.0% (95% bootstrap interval, 1,000 resamples)" in page.text
    assert "bootstrap" not in Page(render_report(full_report())).text  # of a run that is all right


@pytest.mark.parametrize("name", CASES)
@pytest.mark.first_form
def test_report_shows_every_kind_of_task(name):
    case = make_case(name)
    errors = worst_errors(case.task, case.dev, case.answer(0.5))[:3]
    results = results_of_kind(name)
    page = Page(render_report(Report("t", results, errors=errors)))
    sections = ["Result", *(["Classes"] if results["classes"] else []), "Worst errors"]
    assert [section for section in page.sections if section != "Confusion"] == sections
    assert ("Confusion" in page.sections) == (name == "classification")
    assert len(page.tables[1]) == 5  # a row a run
    shown = page.tables[-1]
    measure = "distance" if name in ("regression", "sentence_embedding") else "probability"
    assert shown[0] == ["text", "label", "predicted", measure]
    assert len(shown) == 4 and all(cell for row in shown for cell in row)
    assert ("labels." in page.text) == bool(case.task.labels)


def test_report_says_what_was_not_read_of_the_texts():
    texts = {"sequence_length": 16, "texts": 40, "texts_cut": 3, "tokens": 500, "tokens_cut": 25}
    texts |= {"length_that_cuts_few": 30, "characters": 1000, "unknown_characters": 10, "stripped_characters": 0}
    results = results_of([[0, 1, 2, 1]]) | {"texts": {"train": texts, "dev": texts | {"texts_cut": 0, "characters": 0}}}
    said = "train: 3 of 40 texts are longer than 16 tokens (sequence_length): 5.0 % of the tokens are cut off"
    page = Page(render_report(Report("t", results)))
    assert "Not read" in page.sections and said in page.text and "train: 1.00 % of the characters" in page.text
    assert "dev: " not in page.text
    (lines,) = remarks_markdown(results)
    assert lines.startswith("Not read:\n\n- train: 3 of 40 texts") and len(lines.splitlines()) == 4
    assert remarks_markdown(results_of([[0, 1, 2, 1]])) == []


@pytest.mark.slow
def test_report_names_the_classes_as_the_task_does():
    tables = {name: Page(render_report(Report("t", results_of_kind(name)))).tables for name in CASES}
    assert tables["token_classification"][2][0][0] == "type of span"
    assert [row[0] for row in tables["token_classification"][2][1:]] == ["LOC", "PER"]
    assert [row[0] for row in tables["multi_label"][2]] == ["label", "x", "y", "z"]


def test_report_writes_answers_of_every_type():
    error = {"text": "t", "probability": 0.5}
    answers = [(["a/O", "b/O"], ["a/B", "b/B"]), (1.0, 2.25), ([], ["x"]), ("", "yes")]
    errors = [error | {"gold": gold, "predicted": predicted} for gold, predicted in answers]
    shown = Page(render_report(replace(errors=errors))).tables[5]
    assert [row[1:3] for row in shown[1:]] == [
        ["a/O, b/O", "a/B, b/B"],
        ["1.000", "2.250"],
        ["(none)", "x"],
        ["(none)", "yes"],
    ]


def test_report_cuts_long_texts_and_wide_matrices():
    error = {"text": "x" * 2 * MAX_TEXT, "gold": "a", "predicted": "b", "probability": 1.0}
    results = full_report().results
    names = [f"label {i}" for i in range(MAX_CLASSES + 1)]
    results = {**results, "task": {**results["task"], "labels": names}, "confusion": [[0] * len(names)] * len(names)}
    row = dict.fromkeys(("precision", "recall", "f1"), 0.5) | dict.fromkeys(("gold", "predicted", "correct"), 1)
    results["classes"] = dict.fromkeys(names[1:], row) | {names[0]: {**row, "f1": 0.25}}
    page = Page(render_report(replace(errors=[error], results=results)))
    assert "x" * MAX_TEXT + "…" in page.text and "x" * (MAX_TEXT + 1) not in page.text
    assert f"{MAX_CLASSES + 1} classes are too many" in page.text
    (classes,) = (table for table in page.tables if table[0][0] == "class")
    assert [row[0] for row in classes[1:]] == names[:MAX_CLASSES]  # the lowest F1 first
    assert f"The {MAX_CLASSES} of {MAX_CLASSES + 1} with the lowest F1" in page.text
