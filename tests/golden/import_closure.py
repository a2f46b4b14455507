"""Digest the code that a stage's result depends on: its module and every project module that it imports.

Sources are read, never imported. A module is digested as its syntax tree without comments, docstrings, layout and what
differs between minor versions of Python.
"""

import ast
import hashlib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("keras_bert_flow", "beam_jobs")
PUBLIC = "keras_bert_flow"  # its `__init__.py` only looks up names, in the table `LAZY_NAMES` of attribute → module
LAZY_NAMES = "_HOMES"
DIGITS = 16  # of a digest
_WITHOUT_MEANING = ("kind", "type_comment", "type_ignores", "ctx")


def code_digests(module: str, root: Path = ROOT) -> dict[str, str]:
    """Return the digest of each module in the import closure of `module`, by dotted name.

    Imports count anywhere in a module, except under `if TYPE_CHECKING`. A string of the form `module:name`, such as
    `keras_bert_flow.tasks.multiple_choice:MultipleChoice` in a registry, counts as an import of that module.
    A module's packages count with it, except `keras_bert_flow/__init__.py`, whose lazy names are followed.

    Args:
        module: dotted name, such as `keras_bert_flow.training.pretraining.pretrain`.
        root: folder that holds the packages.
    Raises:
        FileNotFoundError: the project has no such module.
    """
    if _find_source(module, root) is None:
        raise FileNotFoundError(f"A stage must name a module of this project. Received: {module}, not below {root}.")
    digests: dict[str, str] = {}
    waiting, seen = [module], {PUBLIC}
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        if path := _find_source(name, root):
            digests[name], imported = _examine(path.read_bytes(), name if path.name == "__init__.py" else _parent(name))
            waiting += [_follow_lazy_name(target, root) for target in imported - seen]
            waiting.append(_parent(name))
    return dict(sorted(digests.items()))


def _parent(name: str) -> str:
    return name.rpartition(".")[0]


def _find_source(name: str, root: Path) -> Path | None:
    """Return the file of a project module; None for attributes and for modules of other packages."""
    if name.partition(".")[0] not in PACKAGES:
        return None
    path = root.joinpath(*name.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


def _follow_lazy_name(target: str, root: Path) -> str:
    package, _, name = target.rpartition(".")
    if package != PUBLIC or _find_source(target, root):
        return target
    home = lazy_names(root).get(name)
    return f"{PUBLIC}.{home}" if home else target


def lazy_names(root: Path = ROOT) -> dict[str, str]:
    """Return the public names of the package → the module of each, without the package's name."""
    return _read_lazy_names((root / PUBLIC / "__init__.py").read_bytes())


@cache
def _read_lazy_names(source: bytes) -> dict[str, str]:
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and any(getattr(to, "id", None) == LAZY_NAMES for to in node.targets):
            return ast.literal_eval(node.value)
    return {}


@cache
def _examine(source: bytes, package: str) -> tuple[str, frozenset[str]]:
    """Return the digest of a module and the dotted names that it may import, including attributes."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and _has_docstring(
            node
        ):
            node.body = node.body[1:]
    digest = hashlib.sha256(describe_tree(tree).encode(errors="surrogatepass")).hexdigest()[:DIGITS]
    return digest, frozenset(name for name in list_imports(tree, package) if name.partition(".")[0] in PACKAGES)


def describe_tree(node: ast.AST) -> str:
    """Return a syntax tree as text, the same of each minor version of Python since 3.11.

    Fields that are empty are left out, since later versions add such (`type_params` in 3.12) and `ast.dump` prints them
    until 3.13; so are the `u` of a text and comments of types. Neighbouring texts of an f-string are joined, which the
    tokenizer of 3.12 cuts in other places.
    """

    parts: list[str] = []

    def add(value: object) -> None:
        if isinstance(value, ast.AST):
            parts.append(f"{type(value).__name__}(")
            for name in value._fields:
                inner = getattr(value, name, None)
                if inner is None or inner == [] or name in _WITHOUT_MEANING:
                    continue
                parts.append(f"{name}=")
                add(_join_texts(inner) if isinstance(value, ast.JoinedStr) else inner)
            parts.append(")")
        elif isinstance(value, list):
            parts.append("[")
            for inner in value:
                add(inner)
            parts.append("]")
        else:
            parts.append(f"{value!r},")

    add(node)
    return "".join(parts)


def _join_texts(values: list[ast.expr]) -> list[object]:
    joined: list[object] = []
    for value in values:
        part = value.value if isinstance(value, ast.Constant) else value
        if isinstance(part, str) and joined and isinstance(joined[-1], str):
            joined[-1] += part
        elif part != "":
            joined.append(part)
    return joined


def _has_docstring(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    first = node.body[0] if node.body else None
    return isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)


def list_imports(node: ast.AST, package: str) -> Iterator[str]:
    """Yield the dotted names that a tree may import, as `code_digests` counts them; those of attributes as well.

    Args:
        package: name of the package that relative imports start from.
    """
    if isinstance(node, ast.Import):
        yield from (name.name for name in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
        module = ".".join([*base, *([node.module] if node.module else [])])
        yield from (module, *(f"{module}.{name.name}" for name in node.names))
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and ":" in node.value:
        yield node.value.partition(":")[0]
    else:
        children: Iterable[ast.AST] = ast.iter_child_nodes(node)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in (
            getattr(node.test, "id", None),
            getattr(node.test, "attr", None),
        ):
            children = node.orelse
        for child in children:
            yield from list_imports(child, package)
