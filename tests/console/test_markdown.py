"""Foreign text in Markdown, as a CommonMark parser with tables reads it: text, in its cell, and nothing else."""

import random

import pytest
from markdown_it import MarkdownIt

from keras_bert_flow.console.terminal import JOINERS, as_markdown, code_span, escape_controls, escape_markdown
from tests.hostile_names import HOSTILE, hidden_in

PARSER = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
CHARACTERS = "ab \\|`*_[]()<>!&#~$;:-\n\x1b\u202e1"


def text_of(inline) -> str:
    """Return the text of an inline token; nothing but text and escapes is in it."""
    assert {token.type for token in inline.children} <= {"text", "text_special"}, inline.content
    return "".join(token.content for token in inline.children)


def read_table(markdown: str) -> list[list[str]]:
    """Return the cells of a document that is one table."""
    rows = []
    tokens = PARSER.parse(markdown)
    assert [token.type for token in tokens if token.level == 0] == ["table_open", "table_close"]
    for token in tokens:
        if token.type == "tr_open":
            rows.append([])
        if token.type == "inline":
            rows[-1].append(text_of(token))
    return rows


def shown(name: str) -> str:
    return escape_controls(name, JOINERS).strip()


def test_table_of_hostile_names_has_its_rows_and_columns():
    rows = [["model", "accuracy %"], *([name, name] for name in HOSTILE)]
    markdown = as_markdown(rows)
    assert read_table(markdown) == [[shown(cell) for cell in row] for row in rows]
    assert not hidden_in(markdown) and "<" not in markdown


def test_any_text_is_a_cell_a_heading_and_a_sentence():
    chance = random.Random(1)
    for _ in range(2000):
        name = "".join(chance.choices(CHARACTERS, k=chance.randrange(12)))
        assert read_table(as_markdown([["h", "h"], [name, "end"]])) == [["h", "h"], [shown(name), "end"]]
        opening, inline, closing = PARSER.parse(f"# {escape_markdown(name)}")
        assert (opening.tag, closing.tag, text_of(inline)) == ("h1", "h1", shown(name))
        opening, inline, closing = PARSER.parse(f"On {escape_markdown(name)}:")
        assert (opening.tag, text_of(inline)) == ("p", f"On {escape_controls(name)}:")


def test_any_text_is_a_code_span():
    chance = random.Random(2)
    for _ in range(2000):
        name = "".join(chance.choices(CHARACTERS, k=chance.randrange(1, 12)))
        (_, inline, _) = PARSER.parse(f"At {code_span(name)}.")
        before, code, after = inline.children
        assert (before.content, code.type, after.content) == ("At ", "code_inline", ".")
        assert code.content == escape_controls(name) or not name.strip(" ")


@pytest.mark.parametrize("name", ["max_answer_tokens", "R&D (2026), 50 %: A/B-test", "C#", "pre-trained ± 1.5"])
def test_ordinary_names_are_not_changed(name):
    assert escape_markdown(name) == name
