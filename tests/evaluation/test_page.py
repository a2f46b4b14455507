"""Foreign text on a page, as an HTML parser reads it."""

from html.parser import HTMLParser

import pytest

from keras_bert_flow.evaluation.curves import describe_panel, draw_panel, last_values, log_panels
from keras_bert_flow.evaluation.page import details, figure, page, paragraph, section, shaded_table, table
from tests.hostile_names import HOSTILE, hidden_in

OURS = {"html", "head", "meta", "title", "style", "body", "main", "h1", "h2", "section", "p", "div", "code", "pre"}
OURS |= {"table", "thead", "tbody", "tr", "th", "td", "figure", "figcaption", "svg", "details", "summary"}


class Elements(HTMLParser):
    def __init__(self, html: str):
        super().__init__()
        self.names, self.attributes, self.text = set(), set(), ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.names.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data):
        self.text += data


def write_page(name: str) -> str:
    parts = [
        paragraph(name),
        table([name, name], [[name, name]], [name, "code"]),
        shaded_table([name], [[1]]),
        figure("<svg></svg>", name),
        details(name, name),
    ]
    return page(name, [section(name, *parts)])


def test_names_make_no_elements_and_no_controls():
    plain = Elements(write_page("name"))
    for name in HOSTILE:
        html = write_page(name)
        seen = Elements(html)
        assert seen.names <= OURS and (seen.names, seen.attributes) == (plain.names, plain.attributes)
        assert not hidden_in(html)
        assert seen.text.count("pwned") == (plain.text.count("name") if "pwned" in name else 0)


def test_line_ends_and_joiners_stay():
    assert "<pre>a: 1\nb: \u06cc\u200c\u062e</pre>" in details("YAML", "a: 1\nb: \u06cc\u200c\u062e")


@pytest.mark.figures
def test_names_in_figures_are_escaped():
    curves = {f"{name.replace('/', '')}/1": [{"step": 1, "loss": 1.0}] for name in HOSTILE}
    curves |= {name.replace("/", ""): [{"step": 1, f"{name}_loss": 1.0}] for name in HOSTILE}
    panels = log_panels(curves)
    text = "".join([*(cell for row in last_values(panels) for cell in row), *map(describe_panel, panels)])
    assert len(panels) == len(HOSTILE) + 1 and not hidden_in(text)
    for number in (2, -1):
        drawn = draw_panel(panels[number], "a")
        assert not hidden_in(drawn) and "img" not in Elements(drawn).names
