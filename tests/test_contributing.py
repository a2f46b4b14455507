"""The walks of CONTRIBUTING.md: each name is there, and a walk is short."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("keras_bert_flow", "beam_jobs", "flows")
SECTION = "## Three walks"
LONGEST = 10  # names of a walk
NAME = re.compile(rf"^- `((?:{'|'.join(PACKAGES)})\.[\w.]+)`: ", re.MULTILINE)


def read_walks(page: str) -> dict[str, list[str]]:
    """Return title → the dotted names of a walk."""
    section = page.partition(f"\n{SECTION}\n")[2].partition("\n## ")[0]
    _, *parts = re.split(r"^\*\*(.+)\*\*$", section, flags=re.MULTILINE)
    return {title: NAME.findall(part) for title, part in zip(parts[::2], parts[1::2], strict=True)}


def explain_missing(name: str, root: Path = ROOT) -> str | None:
    """Return what to write in place of a name that is not there; None if it is there."""
    parts = name.split(".")
    module = next(
        (
            path
            for count in range(len(parts) - 1, 0, -1)
            if (path := root.joinpath(*parts[:count]).with_suffix(".py")).is_file()
        ),
        None,
    )
    if module is None:
        fault, sought = "there is no such module", [parts[-1]]
    else:
        sought = parts[len(module.relative_to(root).parts) :]
        if _defines(module, sought):
            return None
        fault = f"{module.relative_to(root)} does not define {'.'.join(sought)}"
    found = [
        path.relative_to(root).with_suffix("").as_posix().replace("/", ".")
        for package in PACKAGES
        for path in sorted((root / package).rglob("*.py"))
        if _defines(path, sought) or _defines(path, parts[-2:])
    ]
    remedy = f"It is in {', '.join(found)}: write that." if found else "Name what does this now."
    return f"CONTRIBUTING.md, `{SECTION}`, names {name}, but {fault}. {remedy}"


def _defines(path: Path, names: list[str]) -> bool:
    body: list[ast.stmt] = ast.parse(path.read_bytes()).body
    for name in names:
        node = next((node for node in body if getattr(node, "name", None) == name), None)
        if node is None:
            return False
        body = getattr(node, "body", [])
    return True


def test_walks_name_what_is_there():
    walks = read_walks((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    assert len(walks) == 3
    assert {title: len(names) for title, names in walks.items() if not 5 <= len(names) <= LONGEST} == {}
    faults = [fault for names in walks.values() for name in names if (fault := explain_missing(name))]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("keras_bert_flow.room.there.find", None),
        ("keras_bert_flow.room.there.Model.call", None),
        ("keras_bert_flow.room.there.Model.lost", "room/there.py does not define Model.lost. Name what does"),
        ("keras_bert_flow.room.here.find", "no such module. It is in keras_bert_flow.room.there: write that"),
        ("keras_bert_flow.room.here.Model.call", "no such module. It is in keras_bert_flow.room.there: write that"),
        ("keras_bert_flow.here.lost", "no such module. Name what does this now"),
    ],
)
def test_name_that_moved_is_found(tmp_path, name, fault):
    folder = tmp_path / "keras_bert_flow" / "room"
    folder.mkdir(parents=True)
    (folder / "there.py").write_text("def find(): ...\nclass Model:\n    def call(self): ...\n")
    said = explain_missing(name, tmp_path)
    assert said is None if fault is None else fault in said
