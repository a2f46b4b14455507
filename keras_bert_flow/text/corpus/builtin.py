"""Built-in corpus and task that need no download: the docstrings of the installed packages."""

import ast
import functools
import hashlib
import importlib.metadata
import importlib.util
import platform
import re
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

# Only what every install with the extras `beam` and `flows` contains, so that all backends read the same text.
PROJECTS = ("python", "numpy", "keras", "apache_beam", "prefect", "scipy")
MAX_TRAIN_ROWS = 600  # per project; keeps the classes balanced
MAX_DEV_ROWS = 100
MIN_CHARACTERS, MAX_CHARACTERS = 40, 400  # of a text of the task
DEV_PERCENT = 15  # of the modules

_SKIPPED_FOLDERS = frozenset(
    (
        *("test", "tests", "testing", "_vendor", "vendor", "vendored", "externals", "cobyqa", "array_api_extra"),
        *("site-packages", "dist-packages", "idlelib", "lib2to3", "turtledemo", "ensurepip", "pydoc_data"),
    )
)
_SKIPPED_FILE = re.compile(r"^test_|_test$|_pb2")  # tests and generated code
_GIVEAWAY = re.compile(r"python|numpy|\bnp\.|keras|tensorflow|\bbeam|apache|prefect|scipy", re.IGNORECASE)
_ROLE = re.compile(r":[\w:+-]+:`[~!]?([^`<]*)[^`]*`")  # :class:`~a.b.Name` reads `a.b.Name`
_UNDERLINE = re.compile(r"[-=~^*#+.]{3,}")
_ITEM = re.compile(r"(?:[-*+•]|\d+[.)]|\.\.|@\w+|:\w[^:]*:|[*`]*\w+[`\]]*(?: \([^)]*\))?:) ")  # of a list, of arguments
_ARGUMENT = re.compile(r"[\w*`., ]{1,60} : ")  # `name : type` in numpy's style
_NOT_LETTER = re.compile(r"[^A-Za-z ]")
_MIN_WORDS = 5
_MAX_OTHER_SHARE = 0.25


def builtin_documents() -> Iterator[tuple[str, str]]:
    """Yield (module name, text) for each module, in a fixed order; one paragraph per line.

    The text is the prose of the docstrings, without code, parameter lists and duplicate paragraphs. Then follow the
    topics of Python's own `help()`, one document each. The order is that of `PROJECTS`, then of file names.

    Raises:
        FileNotFoundError: a project is not installed.
    """
    seen: set[bytes] = set()
    for _, module, docstrings in _read_modules():
        lines = [line for docstring in docstrings for line in _find_prose(docstring) if _is_new(line, seen)]
        if lines:
            yield module, "\n".join(lines)
    topics = _find_root("python") / "pydoc_data" / "topics.py"
    if topics.is_file():
        assignments = [node for node in ast.parse(topics.read_bytes()).body if isinstance(node, ast.Assign)]
        for topic, text in sorted(ast.literal_eval(assignments[-1].value).items()):
            lines = [line for line in _find_prose(text) if _is_new(line, seen)]
            if lines:
                yield f"pydoc_data.topics.{topic}", "\n".join(lines)


def builtin_task() -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Return training and dev rows of (text, project) for a task: which project a docstring is from.

    A text is the first 40 to 400 characters of a docstring, cut at a paragraph. Texts that name one of the projects are
    left out. Modules are split by the hash of their name, so the two sets share no file and no text; the choice and
    order of the rows come from hashes, too.
    """
    sides: dict[bool, list[tuple[str, str]]] = {False: [], True: []}
    seen: set[bytes] = set()
    for project, module, docstrings in _read_modules():
        is_dev = _digest(module)[0] * 100 < DEV_PERCENT * 256
        for docstring in docstrings:
            text = ""
            for paragraph in _find_prose(docstring):
                longer = f"{text} {paragraph}".strip()
                if len(longer) > MAX_CHARACTERS:
                    break
                text = longer
            if len(text) >= MIN_CHARACTERS and not _GIVEAWAY.search(text) and _is_new(text, seen):
                sides[is_dev].append((text, project))
    picked: dict[bool, list[tuple[str, str]]] = {False: [], True: []}
    for is_dev, most in ((False, MAX_TRAIN_ROWS), (True, MAX_DEV_ROWS)):
        taken: Counter[str] = Counter()
        for row in sorted(sides[is_dev], key=lambda row: _digest(*row)):
            taken[row[1]] += 1
            if taken[row[1]] <= most:
                picked[is_dev].append(row)
    return picked[False], picked[True]


def write_builtin_corpus(folder: str | Path) -> Path:
    """Write corpus.txt: one paragraph per line, a blank line between documents."""
    path = Path(folder) / "corpus.txt"
    path.write_text("\n".join(f"{text}\n" for _, text in builtin_documents()), encoding="utf-8")
    return path


def write_builtin_task(folder: str | Path) -> tuple[Path, Path]:
    """Write train.tsv and dev.tsv with the columns text and label."""
    paths = Path(folder) / "train.tsv", Path(folder) / "dev.tsv"
    for path, rows in zip(paths, builtin_task(), strict=True):
        path.write_text("".join(f"{text}\t{label}\n" for text, label in [("text", "label"), *rows]), encoding="utf-8")
    return paths


def builtin_digest() -> str:
    """Return a hex digest of the package versions, without reading the sources."""
    versions = [platform.python_version()]
    for name in PROJECTS[1:]:
        _find_root(name)  # has a better error message than importlib
        versions.append(f"{name} {importlib.metadata.version(name.replace('_', '-'))}")
    return _digest("\n".join(versions)).hex()


@functools.cache
def _read_modules() -> tuple[tuple[str, str, tuple[str, ...]], ...]:
    """Return (project, module name, docstrings) for each source file that has docstrings; about 10 s, then cached."""
    modules = []
    for project in PROJECTS:
        root = _find_root(project)
        for path in sorted(root.rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            is_skipped = _SKIPPED_FILE.search(parts[-1]) or not _SKIPPED_FOLDERS.isdisjoint(parts)
            if not is_skipped and (docstrings := _read_docstrings(path)):
                names = parts if project == "python" else (project, *parts)
                modules.append((project, ".".join(names).removesuffix(".__init__"), docstrings))
    return tuple(modules)


def _find_root(project: str) -> Path:
    """Return the source folder of a project; finding a top-level package does not import it."""
    if project == "python":
        return Path(sysconfig.get_path("stdlib"))
    spec = importlib.util.find_spec(project)
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(
            f"The built-in corpus is read from the installed {', '.join(PROJECTS)}. Received: no {project}. "
            "Run: pip install 'keras-bert-flow[beam,flows]'"
        )
    return Path(spec.submodule_search_locations[0])


def _read_docstrings(path: Path) -> tuple[str, ...]:
    source = path.read_bytes()
    if b'"""' not in source and b"'''" not in source:
        return ()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # invalid escapes in other people's sources
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError):
            return ()
    return tuple(docstring for node in _walk_definitions(tree) if (docstring := ast.get_docstring(node)))


def _walk_definitions(
    node: ast.AST,
) -> Iterator[ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the module and its nested classes and functions, in reading order, without entering expressions."""
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield node
    for field in ("body", "handlers", "orelse", "finalbody"):
        for child in getattr(node, field, ()):
            yield from _walk_definitions(child)


def _find_prose(docstring: str) -> list[str]:
    """Return the paragraphs that are prose, each on one line."""
    docstring = docstring.encode("utf-8", "ignore").decode("utf-8")  # a lone surrogate is no text
    paragraphs = (" ".join(" ".join(block).split()) for block in _split_blocks(docstring))
    prose = []
    for paragraph in (_ROLE.sub(r"\1", paragraph).replace("::", ":") for paragraph in paragraphs):
        others = len(_NOT_LETTER.findall(paragraph))
        is_text = paragraph.count(" ") >= _MIN_WORDS - 1 and others <= _MAX_OTHER_SHARE * len(paragraph)
        if is_text and not _ARGUMENT.match(paragraph):
            prose.append(paragraph)
    return prose


def _split_blocks(docstring: str) -> Iterator[list[str]]:
    """Yield blocks of lines, split at blank lines, items, headings and changes of indentation."""
    block: list[str] = []
    indent = 0
    code_indent: int | None = None  # more deeply indented lines are code, since a line ended in `::`
    is_fenced = False
    for line in [*docstring.splitlines(), ""]:
        text = line.strip()
        line_indent = len(line) - len(line.lstrip())
        is_fence = text.startswith("```")
        is_fenced ^= is_fence
        if text and code_indent is not None and line_indent <= code_indent:
            code_indent = None
        is_code = is_fence or is_fenced or code_indent is not None or text.startswith((">>>", "... ", "$ "))
        hangs = len(block) == 1 and line_indent > indent and _ITEM.match(block[0])
        if _UNDERLINE.fullmatch(text):
            block = []  # the text above an underline is a heading
        elif text and not is_code and not _ITEM.match(text) and (line_indent == indent or hangs):
            block.append(text)
            indent = line_indent
        else:
            if block:
                yield block
            block = [text] if text and not is_code else []
            indent = line_indent if text else indent
        if text.endswith("::") and not is_code:
            code_indent = line_indent


def _is_new(text: str, seen: set[bytes]) -> bool:
    digest = _digest(text)
    is_new = digest not in seen
    seen.add(digest)
    return is_new


def _digest(*parts: str | bytes) -> bytes:
    data = b"\n".join(part.encode("utf-8") if isinstance(part, str) else part for part in parts)
    return hashlib.blake2b(data, digest_size=16).digest()
