"""What the documentation says of the code: links, commands and their options, and the pages made from the code."""

import importlib.util
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main

from keras_bert_flow.cli import app
from tests.documented import PYTHON, read_blocks

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
COMMAND = re.compile(r"^\s*(?:\$ )?(?:[A-Z_]+=\S* )*kbf (.*)$")


def load_reference():
    spec = importlib.util.spec_from_file_location("make_reference", ROOT / "docs" / "make_reference.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_reference_is_that_of_the_code():
    reference = load_reference()
    for name, describe in reference.PAGES.items():
        found = (ROOT / "docs" / "reference" / name).read_text(encoding="utf-8")
        assert found == describe().rstrip() + "\n", (
            f"Run python docs/make_reference.py: {name} is not that of the code."
        )


def commands() -> Iterator[tuple[str, list[str]]]:
    for page in PAGES:
        lines = (line for block in read_blocks(page) if block.language != PYTHON for line in block.parts)
        for line in lines:
            for part in line.split(" && "):
                if found := COMMAND.match(part.partition("  #")[0]):
                    yield page.name, shlex.split(found[1], comments=True)


def test_every_command_in_the_docs_is_one_of_ours():
    root = typer.main.get_command(app)
    unknown = []
    for page, words in commands():
        command, rest = root, list(words)
        rest = rest[1:] if rest[:1] == ["--debug"] else rest
        while rest and getattr(command, "commands", {}).get(rest[0]):
            command = command.commands[rest.pop(0)]
        options = {name for parameter in command.params for name in [*parameter.opts, *parameter.secondary_opts]}
        if getattr(command, "commands", None) and not options & {word.partition("=")[0] for word in rest}:
            unknown.append((page, words))
        passes_on = command.context_settings.get("ignore_unknown_options")  # to Apache Beam
        given = {word.partition("=")[0] for word in rest if word.startswith("--") and word != "--"}
        if not passes_on and given - options - {"--help"}:
            unknown.append((page, words))
    assert unknown == []
    assert len(list(commands())) > 40


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path):
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_index_names_every_page():
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert {page for page in pages - {"index.md"} if f"({page})" not in index} == set()
