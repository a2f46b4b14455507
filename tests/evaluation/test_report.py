import dataclasses
import math
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from keras_bert_flow.evaluation.curves import MAX_POINTS, describe_bars, describe_panel, last_values, log_panels
from keras_bert_flow.evaluation.page import find_figures
from keras_bert_flow.evaluation.report import Report, render_report, write_report
from keras_bert_flow.evaluation.tables import grid_rows
from tests.evaluation.test_grid_table import GRID
from tests.evaluation.test_results import results_of

HOSTILE = '<script src="http://x.example/a.js">\'&amp;'
VOID = {"meta", "br", "hr", "img", "link", "input"}


class Page(HTMLParser):
    """Checks that tags are balanced and ids single, and keeps what a reader sees."""

    def __init__(self, html: str):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.references, self.ids, self.text = [], [], [], [], ""
        self.tables, self.sections = [], []
        self.feed(html)
        self.close()
        assert self.open == []
        assert len(set(self.ids)) == len(self.ids)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.ids += [value for name, value in attributes if name == "id"]
        named = ("href", "src", "xlink:href", "xmlns", "action", "data", "srcset")
        self.references += [value for name, value in attributes if name in named]
        self.references += [url for _, value in attributes for url in re.findall(r"url\(([^)]*)\)", value or "")]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("th", "td"):
            self.tables[-1][-1].append("")
        if tag == "h2":
            self.sections.append("")

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" in self.open:
            assert "url(" not in data and "@import" not in data
            return
        self.text += data
        if "td" in self.open or "th" in self.open:
            self.tables[-1][-1][-1] += data
        if "h2" in self.open:
            self.sections[-1] += data


def full_report() -> Report:
    losses = [{"step": step, "loss": 3.0 - step / 10, "learning_rate": 1e-4} for step in range(1, 21)]
    return Report(
        title="A run",
        results=results_of([[0, 1, 2, 2], [0, 1, 2, 1]], [[0, 0, 0, 0], [0, 1, 1, 1]]),
        pretraining={"masked_lm_loss": 2.5, "masked_lm_accuracy": 0.25, "unigram_accuracy": 0.0625, "tokens": 1234567},
        curves={
            "pretraining": [*losses, {"step": 20, "held_out_loss": 1.5}],
            **{f"{model}/{seed}": losses for model in ("pretrained", "random") for seed in (1, 2)},
        },
        counters={"documents": 12345, "tokens": 2000, "unknown_tokens": 30, "rejected": {"not_utf8": 3}},
        data={"records": "[CLS] [MASK: a] b [SEP]"},
        stages=[{"stage": "records", "key": "0f", "seconds": 12.34}],
        config={"name": "a", "corpus": {"input": ("builtin", "grün")}, "none": None},
        versions={"python": "3.11.0", "keras": "3.15.1"},
        errors=[{"text": "t2", "text_pair": "p2", "gold": "red", "predicted": "blue", "probability": 0.9}],
    )


def replace(**changes) -> Report:
    return dataclasses.replace(full_report(), **changes)


def test_report_shows_the_grid_beside_what_is_to_be_thought_of_it():
    results = full_report().results | {"grid": GRID}
    page = Page(render_report(replace(results=results)))
    assert page.sections[:2] == ["Result", "Grid"]
    assert page.tables[2] == grid_rows(GRID)
    assert "Report the scores of a test set" in page.text
    assert "Grid" not in Page(render_report(full_report())).sections


def test_report_shows_every_part():
    page = Page(render_report(full_report()))
    assert page.sections == [
        "Result",
        "Pre-training",
        "Curves",
        "Classes",
        "Confusion",
        "Worst errors",
        "Data",
        "Cost",
        "Versions",
        "Configuration",
    ]
    result, runs, pretraining, classes, confusion, errors, data, stages, versions = page.tables
    assert [row[:2] for row in result[1:]] == [
        ["majority class", "25.0"],
        ["random weights", "37.5 ± 17.7"],
        ["pre-trained", "87.5 ± 17.7"],
    ]
    assert [(row[0], row[1], row[-1]) for row in runs[1:]] == [
        ("random weights, seed 1", "25.0", "collapsed"),
        ("random weights, seed 2", "50.0", ""),
        ("pre-trained, seed 1", "100.0", ""),
        ("pre-trained, seed 2", "75.0", ""),
    ]
    assert pretraining[1:] == [
        ["masked-LM loss, held out, nats", "2.5000"],
        ["masked-LM accuracy, held out", "25.0%"],
        ["unigram baseline: always the commonest token", "6.2%"],
        ["tokens", "1,234,567"],
    ]
    assert classes[0] == ["class", "precision %", "recall %", "F1 %", "in the dev set", "predicted", "in both"]
    assert classes[1:] == [
        ["blue", "100.0", "100.0", "100.0", "2", "2", "2"],
        ["green", "66.7", "100.0", "80.0", "2", "3", "2"],
        ["red", "100.0", "75.0", "85.7", "4", "3", "3"],
    ]
    assert confusion[1:] == [["blue", "2", "0", "0"], ["green", "0", "2", "0"], ["red", "0", "1", "3"]]
    assert errors[1] == ["t2 ‖ p2", "red", "blue", "0.900"]
    assert ["unknown tokens", "30", "1.50% of tokens"] in data and ["rejected: not utf8", "3", ""] in data
    assert "[MASK: a]" in page.text
    assert stages[1] == ["records", "0f", "", "12.3", "", ""]
    assert versions[1:] == [["python", "3.11.0"], ["keras", "3.15.1"]]
    assert "input:\n  - builtin\n  - grün\n" in page.text and "none: null" in page.text
    assert "By accuracy on colours, the pre-trained model reaches" in page.text and "summed over 2 runs" in page.text


@pytest.mark.figures
def test_report_draws_the_losses():
    pytest.importorskip("matplotlib")
    html = render_report(full_report())
    page = Page(html)
    assert page.tags.count("svg") == 3
    assert "Pre-training: loss 1.0000 at step 20; held out loss 1.5000 at step 20." in page.text
    assert "Fine-tuning: one line a seed." in page.text
    assert "random weights" in html[html.index("</svg>") : html.rindex("</svg>")]  # in the legend, as text
    assert "currentColor" in html and "#010203" not in html and "#000000" not in html
    # Text in the page's colour, so that it is seen on a dark page: no text lies outside the rule.
    assert all("currentColor" in text for text in re.findall(r"<text[^>]*>", html))


@pytest.mark.figures
def test_bars_have_the_models_and_their_intervals():
    pytest.importorskip("matplotlib")
    results = results_of([[0, 1, 2, 2], [0, 1, 2, 1]], [[0, 0, 0, 0], [0, 1, 1, 1]], times=3)
    results["standard_errors"] = {"baseline": 0.0, "random": 0.125, "pretrained": 0.05}
    (shown,) = describe_bars(results)
    svg, caption = find_figures(shown)[0]
    (alternative,) = re.findall(r'^<svg role="img" aria-label="([^"]*)"', svg)
    assert caption == "Mean accuracy of each model. The lines are ± 2 standard errors over dev examples and seeds."
    assert alternative == (
        f"{caption} majority class: 25.0; random weights: 37.5 (12.5 to 62.5); pre-trained: 87.5 (77.5 to 97.5)."
    )
    texts = re.findall(r"<text[^>]*>([^<]+)</text>", svg)
    order = [texts.index(name) for name in ("majority class", "random weights", "pre-trained")]
    assert order == sorted(order) and {"25.0", "37.5", "87.5"} <= {*texts}
    few = results_of([[0, 1, 2, 2]])  # four examples, whose intervals would mean nothing
    assert "standard error" not in describe_bars(few)[0]
    del results["standard_errors"]  # as of an earlier version
    assert "standard error" not in describe_bars(results)[0]


def test_notes_name_only_what_there_is():
    collapsed, spread = "A collapsed run says", "mean ± standard deviation over the seeds"
    some = Page(render_report(replace(results=results_of([[0, 1, 2, 2], [0, 1, 2, 1]], [[0, 0, 0, 0]])))).text
    none = Page(render_report(replace(results=results_of([[0, 1, 2, 2]], [[0, 1, 1, 1]])))).text
    assert collapsed in some and spread in some and collapsed not in none and spread not in none


def test_losses_of_short_intervals_are_joined():
    """An evaluation every 7 steps between lines of the log every 3: intervals of 1 and 2 steps, of single batches."""
    losses = [
        4.0,
        4.1,
        3.9,
        3.0,
        3.1,
        2.9,
        9.0,
        1.0,
        2.0,
        2.1,
        1.9,
        2.0,
        1.5,
        8.5,
    ]  # of each step; a rare batch ends it
    ends = (3, 6, 7, 9, 12, 14)
    means = [sum(losses[start:end]) / (end - start) for start, end in zip((0, *ends), ends, strict=False)]
    lines = [{"step": end, "loss": mean, "dev_accuracy": 0.5} for end, mean in zip(ends, means, strict=True)]
    loss, score = log_panels({"pretrained/1": lines}, "accuracy")
    assert loss.series[0].steps == (3, 6, 9, 12, 14)
    assert loss.series[0].values == pytest.approx([4.0, 3.0, 4.0, 2.0, 5.0])
    assert score.series[0].steps == ends  # what is measured at a step is of that step alone
    single = [*lines[:4], {"step": 10, "loss": 50.0}]
    (loss,) = log_panels({"pretrained/1": single})
    assert loss.series[0].steps == (3, 6, 10) and loss.series[0].values[-1] == pytest.approx((3 * 4.0 + 50.0) / 4)


@pytest.mark.figures
def test_report_refers_to_nothing_outside():
    html = render_report(full_report())
    assert "http" not in html and "//" not in re.sub(r"\s//\s", "", html)
    page = Page(html)
    assert page.references
    assert all(reference.startswith("#") for reference in page.references)
    assert {reference.removeprefix("#") for reference in page.references} <= set(page.ids)
    assert not {"script", "link", "img", "iframe", "object", "base"} & set(page.tags)


@pytest.mark.slow
@pytest.mark.figures
def test_report_is_the_same_bytes_twice(tmp_path):
    for name in ("a.html", "b.html"):
        write_report(tmp_path / name, full_report())
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()
    code = (
        "import sys; from keras_bert_flow.evaluation.report import write_report;"
        "from tests.evaluation.test_report import full_report; write_report(sys.argv[1], full_report())"
    )
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "c.html")], check=True, cwd=root)
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "c.html").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.html", "b.html", "c.html"]


@pytest.mark.figures
def test_report_escapes_what_it_is_given():
    results = results_of([[0, 1, 2, 2]])
    results["task"] = {**results["task"], "name": HOSTILE, "labels": [HOSTILE, "b", "c"], "baseline": HOSTILE}
    results["classes"] = {HOSTILE: results["classes"]["red"]}
    error = {"text": HOSTILE, "text_pair": HOSTILE, "gold": HOSTILE, "predicted": HOSTILE, "probability": 0.5}
    report = Report(
        title=HOSTILE,
        results=results,
        curves={HOSTILE: [{"step": 1, f"{HOSTILE} loss": 1.0}], f"{HOSTILE}/{HOSTILE}": [{"step": 1, "loss": 1.0}]},
        counters={HOSTILE: 1, "reasons": {HOSTILE: HOSTILE}},
        stages=[{"stage": HOSTILE, "key": HOSTILE, "machine": HOSTILE, "began": HOSTILE, "seconds": None}],
        config={HOSTILE: HOSTILE},
        versions={HOSTILE: HOSTILE},
        errors=[error],
    )
    html = render_report(report)
    page = Page(html)
    assert "<script" not in html and "script" not in page.tags
    assert "&lt;script src=&quot;http://x.example/a.js&quot;&gt;&#x27;&amp;amp;" in html
    assert page.text.count(HOSTILE) >= 18
    assert all(reference.startswith("#") for reference in page.references)


def test_report_writes_half_a_surrogate_pair(tmp_path):
    write_report(tmp_path / "r.html", replace(title="a\ud800b"))
    assert "a\\ud800b" in (tmp_path / "r.html").read_text(encoding="utf-8")


def test_report_leaves_out_what_is_not_there():
    page = Page(render_report(Report("t", results_of([[0, 1, 2, 2]]))))
    assert page.sections == ["Result", "Classes", "Confusion"]
    assert "random weights were not compared" in page.text and "±" not in page.tables[0][2][1]


def test_report_takes_pretraining_of_the_results():
    page = Page(render_report(Report("t", results_of([[0, 1, 2, 2]], pretraining={"steps": 7}))))
    assert page.tables[2][1:] == [["steps", "7"]]


def test_report_shows_both_phases_of_pretraining():
    results = results_of([[0, 1, 2, 2]], pretraining={"steps": 7}) | {
        "earlier": {"Pre-training, first phase": {"steps": 9}}
    }
    page = Page(render_report(Report("t", results)))
    assert page.sections == ["Result", "Pre-training, first phase", "Pre-training", "Classes", "Confusion"]
    assert [table[1:] for table in page.tables[2:4]] == [[["steps", "9"]], [["steps", "7"]]]


@pytest.mark.slow
def test_report_needs_no_matplotlib(tmp_path):
    code = (
        "import sys; sys.modules['matplotlib'] = None;"
        "from keras_bert_flow.evaluation.report import write_report;"
        "from tests.evaluation.test_report import full_report; write_report(sys.argv[1], full_report())"
    )
    path = tmp_path / "r.html"
    subprocess.run([sys.executable, "-c", code, str(path)], check=True, cwd=Path(__file__).parents[2])
    page = Page(path.read_text(encoding="utf-8"))
    assert "svg" not in page.tags
    assert "pip install 'keras-bert-flow[plots]'" in page.text
    assert page.tables[3][1:4] == [
        ["Pre-training", "loss", "20", "1.0000"],
        ["Pre-training", "held out loss", "20", "1.5000"],
        ["Fine-tuning", "pre-trained, seed 1", "20", "1.0000"],
    ]


@pytest.mark.figures
def test_drawing_leaves_matplotlib_as_it_was():
    matplotlib = pytest.importorskip("matplotlib")
    before = dict(matplotlib.rcParams)
    render_report(full_report())
    assert dict(matplotlib.rcParams) == before


def test_report_imports_no_training_library_and_matplotlib_late():
    code = (
        "import sys, keras_bert_flow.evaluation.report, keras_bert_flow.evaluation.results;"
        "print([n for n in ('keras', 'tensorflow', 'jax', 'torch', 'matplotlib') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, cwd=Path(__file__).parents[2])
    assert done.stdout.decode().strip() == "[]"


@pytest.mark.figures
def test_figures_show_dollars_as_they_are():
    page = Page(render_report(replace(curves={"pretraining": [{"step": 1, "$\\x$ loss": 1.0}]})))
    assert page.text.count("$\\x$ loss") == 2  # legend and caption, and no formula


def test_panels_thin_long_logs_and_keep_the_last_step():
    lines = [{"step": step, "loss": float(step)} for step in range(1, 10 * MAX_POINTS + 2)]
    (panel,) = log_panels({"pretraining": lines})
    assert MAX_POINTS * 0.9 < len(panel.series[0].steps) <= MAX_POINTS
    assert last_values([panel]) == [["Pre-training", "loss", "10,001", "10001.0000"]]


def test_dev_scores_have_a_figure_by_epoch():
    lines = [{"step": 2, "loss": 1.0}, {"step": 4, "loss": 0.5, "dev_accuracy": 0.75, "dev_f1": 0.5}]
    curves = {"pretrained/1": lines, "random/2": lines[:1], "random/3": [*lines, {"step": 8, "dev_accuracy": 0.5}]}
    losses, scores = log_panels(curves, "accuracy")
    assert [series.label for series in losses.series] == [
        "pre-trained, seed 1",
        "random weights, seed 2",
        "random weights, seed 3",
    ]
    assert [(series.label, series.steps, series.values) for series in scores.series] == [
        ("pre-trained, seed 1", (4,), (0.75,)),
        ("random weights, seed 3", (4, 8), (0.75, 0.5)),
    ]
    assert (scores.title, scores.y_label) == ("Fine-tuning, by epoch", "dev accuracy")


def test_panels_survive_nan_and_empty_logs():
    lines = [{"step": 1, "loss": math.nan}, {"step": 2, "loss": None}, {"step": 3, "loss": math.inf}, {"step": 4}]
    panels = log_panels({"pretraining": lines, "random/1": [], "warm-up": [{"step": 1}]})
    assert [(panel.title, panel.series[0].steps) for panel in panels] == [("Pre-training", (1, 3))]
    assert describe_panel(panels[0]) == "Pre-training: loss inf at step 3."
    Page(render_report(replace(curves={"pretraining": lines})))
