"""The report in Chromium, on a desktop's and on a phone's screen."""

from collections.abc import Iterator

import pytest

from keras_bert_flow.evaluation.report import render_report, write_report
from tests.browsers import chromium
from tests.evaluation.test_report import Page, full_report, replace

DESKTOP, PHONE = 1280, 390  # CSS pixels
# [width of the page, and for each table its box and what lies in it]
MEASURE = """return [document.documentElement.scrollWidth,
    [...document.querySelectorAll('.wide')].map(box => [box.clientWidth, box.scrollWidth])]"""


@pytest.fixture(scope="module")
def browser() -> Iterator:
    with chromium() as driver:
        yield driver


def wide_report():
    """A report with long names, costs of every run, and long words in its texts, but no more classes than a screen."""
    report = full_report()
    for model in ("random", "pretrained"):
        for run in report.results["models"][model]["runs"]:
            run |= {"trained_parameters": 123_456_789, "parameters": 123_456_789, "peak_bytes": 123_456_789_012}
    task = report.results["task"] | {"baseline": "the class of most of the training examples"}
    labels = dict.fromkeys(("a_label_of_a_long_name", "another", "third"), 100000)
    return replace(
        title="A_name_without_spaces_" * 5,
        results=report.results | {"task": task, "remarks": ["x" * 500]},
        data={"tables": {name: {"examples": 300_000, "labels": labels} for name in ("training", "dev", "mismatched")}},
        stages=[{"stage": "pretraining", "key": "0123456789abcdef", "machine": "cpu " * 20, "seconds": 12345.6}],
        config={"corpus": {"input": ["/a/long/path" * 30]}},
        errors=[{"text": "word" * 100, "gold": "red", "predicted": "blue", "probability": 0.9}],
        usage=["kbf predict --model " + "/a/long/path" * 20],
    )


@pytest.mark.figures
def test_tables_fit_a_desktop_and_no_page_scrolls_sideways(browser, tmp_path):
    report = wide_report()
    write_report(tmp_path / "report.html", report)
    results = [table[0][0] for table in Page(render_report(report)).tables].index("model")
    for width in (DESKTOP, PHONE):
        screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width == PHONE}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        browser.get((tmp_path / "report.html").as_uri())
        page_width, boxes = browser.execute_script(MEASURE)
        assert page_width <= width and len(boxes) > 6
        fitting = boxes if width == DESKTOP else boxes[results : results + 1]  # other tables scroll in place
        assert all(content <= box for box, content in fitting), boxes
    contrast = browser.execute_script("return getComputedStyle(document.querySelector('.bars text')).fill")
    assert contrast == browser.execute_script("return getComputedStyle(document.body).color")
