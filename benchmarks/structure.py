"""Print the size of modules and functions, and how they depend on each other: `python benchmarks/structure.py`.

Files, lines and the largest file; functions, their median length and their number per 100 lines; modules that only one
other imports, those named by a registry apart; rooms that import each other in a circle.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[1]
PACKAGES = ("keras_bert_flow", "beam_jobs", "flows")
# `module:attribute`, as registries name plug-ins, and modules that are run as programs or chosen by their name.
NAMED = re.compile(r"[\"']((?:keras_bert_flow|beam_jobs|flows)(?:\.\w+)+)[:\"']")
BY_NAME = ("keras_bert_flow.cli.", "keras_bert_flow.tracking.")


def main() -> None:
    files = {name_module(path): path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))}
    trees = {name: ast.parse(path.read_bytes()) for name, path in files.items()}
    lines = {name: path.read_bytes().count(b"\n") for name, path in files.items()}
    lengths = [
        node.end_lineno - node.lineno + 1
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None
    ]
    largest = max(lines, key=lines.__getitem__)
    packages = sum(path.name == "__init__.py" for path in files.values())
    long, per_100 = sum(count > 500 for count in lines.values()), 100 * len(lengths) / sum(lines.values())
    print(f"files: {len(files)}, of which {packages} say what a room is")
    print(f"lines: {sum(lines.values()):,}; median file {median(lines.values()):.0f}")
    print(f"largest file: {lines[largest]} lines, {largest}; over 500 lines: {long}")
    print(f"functions: {len(lengths):,}; median {median(lengths):.0f} lines; {per_100:.1f} per 100 lines")

    importers: dict[str, set[str]] = {name: set() for name in files}
    for name, tree in trees.items():
        for module in list_imports(tree, files):
            importers[module] |= {name} - {module}
    named = {module for path in files.values() for module in NAMED.findall(path.read_text(encoding="utf-8"))}
    modules = {name for name, path in files.items() if path.name != "__init__.py" and not name.startswith(BY_NAME)}
    single = sorted(name for name in modules - named if len(importers[name]) == 1)
    print(f"modules that one other imports: {len(single)} (" + ", ".join(single) + ")")
    rooms: dict[str, set[str]] = {}
    for module, names in importers.items():
        for name in names:
            if find_room(name) != find_room(module):
                rooms.setdefault(find_room(name), set()).add(find_room(module))
    print(f"rooms in a circle: {sorted(find_circle(rooms)) or 'none'}")


def name_module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def list_imports(tree: ast.Module, files: dict[str, Path]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for name in node.names:
                inner = f"{node.module}.{name.name}"
                if inner in files or node.module in files:
                    yield inner if inner in files else node.module
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name in files)


def find_room(module: str) -> str:
    parts = module.split(".")
    return parts[1] if parts[0] == "keras_bert_flow" and len(parts) > 1 else parts[0]


def find_circle(arrows: dict[str, set[str]]) -> set[str]:
    """Return what is left when all that leads nowhere is removed."""
    while ends := {name for name, targets in arrows.items() if not targets & arrows.keys()}:
        arrows = {name: targets for name, targets in arrows.items() if name not in ends}
    return {*arrows}


if __name__ == "__main__":
    main()
